"""The simulated competition's world: its constants, vocabularies, items, districts and cities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa


def _split(text: str, separator: str = ",") -> tuple[str, ...]:
    return tuple(text.split(separator))


ACTIONS = _split(
    "search for destination,search for poi,change of sort order,filter selection,search for item,"
    "interaction item image,interaction item info,interaction item rating,interaction item deals,clickout item"
)
DESTINATION, POI, SORT, FILTER, SEARCH_ITEM, IMAGE, INFO, RATING, DEALS, CLICKOUT = range(10)
DEVICES = ("mobile", "desktop", "tablet")
PLATFORMS = _split(  # the busiest first
    "BR US JP IN UK DE AU MX MY TR CA ES IT FR AR RU PL NL CO PH ZA NZ TW CH SE AT BE CL HK ID SG KR PT IE DK NO FI GR "
    "HU RO CZ IL AE TH PE EC UY VN CN BG HR RS SI SK AA",
    " ",
)
COUNTRIES = _split(
    "Brazil USA Japan India Germany Australia Mexico Malaysia Turkey Canada Spain Italy France Argentina Russia Poland "
    "Netherlands Colombia Portugal Austria Greece Sweden",
    " ",
)
SYLLABLES = _split("al ber cor dan el far gor hal is jor kel lor mar nor ost per quin ros sal tor ul ven wes yar", " ")
SORTS = ("interaction sort button", "price only", "rating only", "distance only")
SORT_FILTERS = ("Sort by Price", "Focus on Rating", "Focus on Distance")
FILTERS = _split(  # the most used first
    "Hotel,5 Star,Resort,4 Star,Motel,Hostal (ES),3 Star,Very Good Rating,Free WiFi (Combined),Breakfast Included,"
    "Good Rating,Excellent Rating,Swimming Pool (Combined Filter),2 Star,Car Park,Spa (Wellness Facility),"
    "Serviced Apartment,Air Conditioning,Pet Friendly,Beach"
)
FACILITIES = _split(
    "Bicycle Hire,Laundry,Garden,Terrace,Library,Sauna,Gym,Bar,Restaurant,Playground,Lift,Safe,Minibar,Balcony,Bathtub,"
    "Desk,Kitchen,Fireplace,Billiards,Tennis,Golf,Ski Store,Boat Trips,Airport Bus,Concierge,Meeting Room,Cash Machine,"
    "Gift Shop,Childcare,Hairdresser,Television,Kettle,Heating,Fishing"
)
OFFERS = ("", " (Extra Charge)", " on Request", " Nearby")
PROPERTIES = (*FILTERS, "1 Star", *(f + o for o in OFFERS for f in FACILITIES))[:157]  # as many as the real ones
STARS = ("1 Star", "2 Star", "3 Star", "4 Star", "5 Star")
KINDS = {"Hotel": 0.62, "Resort": 0.12, "Motel": 0.10, "Hostal (ES)": 0.08, "Serviced Apartment": 0.08}
RATINGS = {"Good Rating": -0.5, "Very Good Rating": 0.3, "Excellent Rating": 1.1}  # from this standardised rating on
TASTES = ("Swimming Pool (Combined Filter)", "Breakfast Included", "Pet Friendly", "Beach", "Spa (Wellness Facility)")
TASTE_SHARE = 0.4  # of the items have each of them
LIST = 25  # places in a list


@dataclass(frozen=True)
class Constants:
    """Every number of the simulation.

    Where it comes from: P, published for the challenge (910,683 training sessions); S, counted in a public sample of
    its log (3,973 training sessions); C, calibrated, so that on test targets the display order scores .50 and the items
    touched last .65 (the sample: .502, .656), on earlier clickouts .41 and .59 (.399, .568), and the clicked places,
    the share of clicks on the item touched last by action, and the clicked price quantile (.39) come near the sample's.
    """

    items_per_session: float = 0.77  # P: 927 k items to 1.2 M sessions
    district_items: tuple[int, int] = (26, 44)  # smallest and largest district; C
    visits: tuple[float, float] = (20.0, 0.75)  # S: a district's visits fall as (rank + 20) ** -.75
    platforms: tuple[float, float] = (3.0, 1.3)  # S: a platform's users fall as (rank + 3) ** -1.3
    star_shares: tuple[float, ...] = (0.05, 0.15, 0.38, 0.32, 0.10)  # C
    price_level: tuple[float, float] = (4.35, 0.6)  # S: mean and sd of a district's log price
    price_star: float = 0.27  # S with the next two: sd of log prices in a list .41 to .44
    price_item: float = 0.33
    price_date: float = 0.15  # S with the next: sd of an item's log price over lists .11 to .17
    price_listing: float = 0.08
    test_share: float = 0.25  # P: two of eight days
    start: int = 1541030400  # P: 2018-11-01 00:00 UTC, seconds
    days: int = 8  # P
    new_user: float = 0.879  # S: 3,492 users to 3,973 sessions
    busy_hours: float = 0.6  # C: sessions that start by the clock, the others evenly over the day
    return_hours: float = 7.0  # C: median time to a user's next session
    device_shares: tuple[float, ...] = (0.587, 0.333, 0.080)  # P, by session
    clickless: float = 0.052  # S: training sessions without a clickout
    tail: float = 0.018  # S: training sessions that go on after their last clickout
    clickouts: tuple[float, ...] = (0.62, 0.19, 0.092, 0.038, 0.022)  # S: sessions with 1 to 5 clickouts; then a tail
    clickouts_tail: float = 0.74  # S: P(one more) beyond 5
    max_clickouts: int = 80
    full_list: float = 0.78  # S: lists of 25
    nearly_full: float = 0.045  # S: lists of 24
    short_list: float = 0.036  # S: lists of 1 to 10, evenly; the others 11 to 23, evenly
    outside: float = 0.012  # S: clicked item not in the list (never for a test target)
    # Searches, filters, sort orders: at the first episode, at later ones (S); rows per event beyond the first (P)
    destination: tuple[float, float] = (0.26, 0.12)
    poi: tuple[float, float] = (0.075, 0.055)
    sort: tuple[float, float] = (0.045, 0.06)
    filter: tuple[float, float] = (0.075, 0.13)
    search_item: tuple[float, float] = (0.07, 0.06)
    more_destination: float = 0.25
    more_poi: float = 0.25
    more_sort: float = 2.7
    more_filter: float = 0.8
    more_item: float = 0.4
    carried_filters: float = 0.06  # S: sessions that start with filters on
    sort_shares: tuple[float, ...] = (0.78, 0.11, 0.11)  # S: price, rating, distance
    filter_pull: float = 3.0  # C: what meets all filters stands before what meets none
    # Seconds before an action, in the order of ACTIONS (S): share of 0 s, median of the others, sd of their logarithm
    wait_zero: tuple[float, ...] = (0.05, 0.35, 0.15, 0.55, 0.05, 0.40, 0.35, 0.15, 0.12, 0.0)
    wait_median: tuple[float, ...] = (70, 60, 12, 18, 60, 14, 18, 20, 22, 34)
    wait_spread: tuple[float, ...] = (1.5, 1.4, 1.0, 1.2, 1.3, 1.1, 1.2, 1.2, 1.2, 1.35)
    wait_zero_within: float = 0.85  # S: between the images of one run
    longest_wait: int = 4 * 3600
    # Touches
    touched: tuple[float, float] = (0.38, 0.4)  # S: episodes with a touch, first and later
    runs_mu: float = -0.75  # S: further runs of an episode: Poisson, rate lognormal over sessions
    runs_sd: float = 1.6
    max_runs: int = 150
    touch_types: tuple[float, ...] = (0.63, 0.15, 0.115, 0.105)  # P: image runs, info, rating, deals
    images_mu: float = 1.30  # S: images of a run, lognormal: median 4, mean 10
    images_sd: float = 1.45
    max_images: int = 150
    stay: float = 0.35  # S: the next run is about the same item
    stray: float = 0.06  # S: a touch of an item that is not in the list
    touch_scale: float = 0.9  # C
    touch_position: float = 0.75  # S, C
    touch_first: float = 0.25  # S, C
    # Choice (C unless marked)
    position: tuple[float, float] = (0.57, 0.80)  # a: earlier clickouts, last clickout
    first_place: tuple[float, float] = (0.40, 0.92)  # b
    price: float = -0.6  # S: clicked price at the .39 quantile of its list
    price_device: tuple[float, ...] = (1.1, 0.85, 1.0)
    price_sorted: float = 1.6  # factor when sorted by price
    filter_match: float = 1.2
    taste_sd: float = 0.13
    star_quality: float = 0.5  # quality per star
    property_quality: float = 0.7  # quality of each of the properties in TASTES
    hidden_quality: float = 0.30  # sd of the part that only clicks, touches and the rating tell
    rating_noise: float = 0.20  # sd of the rating about the quality
    display_quality: float = 0.30  # how far the default order follows the quality
    display_item: float = 0.7  # sd of an item's own pull in it
    display_noise: float = 0.7  # sd of its chance, anew for every list
    strength: tuple[float, ...] = (5.4, 4.8, 5.2, 3.5, 3.6, 1.3)  # search, image, info, rating, deals, clickout; S, C
    per_log_image: float = 0.7
    memory: float = 0.65
    memory_relist: float = 0.25
    below: float = 2.3  # N at the place right below the last touched
    below_reach: float = 2.5  # places
    # A change of tastes, for what has to notice it: from the start of this day on, counted from 0; None: there is none
    change_day: int | None = None
    price_after: float = 0.9  # instead of `price`: the dear ones are wanted
    position_after: tuple[float, float] = (0.1, 0.0)  # a and b of every click: lists are read to the end


@dataclass
class World:
    """Items, numbered from 0 district by district, and their properties."""

    first: np.ndarray  # int64 [districts], the district's first item
    size: np.ndarray  # int64 [districts]
    visits: np.ndarray  # float64 [districts], cumulated shares of visits
    city: np.ndarray  # int64 [districts]
    quality: np.ndarray  # float32 [items]
    display: np.ndarray  # float32 [items], pull to the top of the default order
    rating: np.ndarray  # float32 [items], what the rating order sorts by
    log_price: np.ndarray  # float32 [items]
    taste: np.ndarray  # float32 [items, tastes], standardised
    has: np.ndarray  # bool [items, properties]
    item_ids: np.ndarray  # int64 [items]
    words: pa.Array  # every string a reference can be: items, cities, points of interest, sort orders, filters
    city_at: int  # where the cities start in `words`, and so on
    poi_at: int
    sort_at: int
    filter_at: int

    def items(self, district: np.ndarray, width: int) -> np.ndarray:
        """Return the items of the districts, int64 ``[n, width]``; a smaller district repeats its last."""
        last = self.first[district] + self.size[district] - 1
        return np.minimum(self.first[district][:, None] + np.arange(width), last[:, None])


def make_world(c: Constants, sessions: int, rng: np.random.Generator) -> World:
    """Draw a world whose items are listed about as often, at any number of sessions, as in the full competition."""
    low, high = c.district_items
    districts = max(6, round(c.items_per_session * sessions / ((low + high) / 2)))
    size = rng.integers(low, high + 1, districts)
    items = int(size.sum())
    weight = (np.arange(districts) + c.visits[0]) ** -c.visits[1]  # district 0 is the busiest
    # Busy cities have more districts: down the list a new city starts more and more often.
    city = np.cumsum(rng.random(districts) < np.clip(np.arange(districts) / districts + 0.3, 0, 1))
    city -= city[0]
    stars = rng.choice(5, items, p=c.star_shares)
    has = _draw_properties(stars, rng)
    tone = stars - 2.3  # about its mean
    liked = has[:, [PROPERTIES.index(name) for name in TASTES]] - TASTE_SHARE
    quality = c.star_quality * tone + c.property_quality * liked.sum(1) + rng.normal(0, c.hidden_quality, items)
    rating = quality + rng.normal(0, c.rating_noise, items)
    for name, least in RATINGS.items():
        has[:, PROPERTIES.index(name)] = (rating - rating.mean()) / rating.std() >= least
    taste = np.column_stack([liked / np.sqrt(TASTE_SHARE * (1 - TASTE_SHARE)), tone])
    display = c.display_quality * quality + rng.normal(0, c.display_item, items)
    log_price = np.repeat(rng.normal(*c.price_level, districts), size) + c.price_star * tone
    log_price += rng.normal(0, c.price_item, items)
    item_ids = rng.choice(5_650_000, items, replace=False) * 2 + 5001
    cities = _city_names(int(city[-1]) + 1, rng)
    pois = [f"{cities[k][1:].split(',')[0]} Station {d}" for d, k in enumerate(city)]
    groups = [pa.array(item_ids).cast(pa.string()), pa.array(cities), pa.array(pois)]
    groups += [pa.array(SORTS), pa.array(SORT_FILTERS + FILTERS)]
    starts = np.cumsum([len(group) for group in groups])
    return World(
        first=np.cumsum(size) - size,
        size=size,
        visits=np.cumsum(weight) / weight.sum(),
        city=city,
        quality=quality.astype(np.float32),
        display=display.astype(np.float32),
        rating=rating.astype(np.float32),
        log_price=log_price.astype(np.float32),
        taste=taste.astype(np.float32),
        has=has,
        item_ids=item_ids,
        words=pa.concat_arrays(groups),
        city_at=int(starts[0]),
        poi_at=int(starts[1]),
        sort_at=int(starts[2]),
        filter_at=int(starts[3]),
    )


def _draw_properties(stars: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw properties of every item, bool ``[items, properties]``: one star class, one kind, more with more stars."""
    share = np.clip(rng.beta(0.9, 2.5, len(PROPERTIES)), 0.03, 0.9).astype(np.float32)
    pull = np.linspace(0.6, 1.4, 5, dtype=np.float32)[stars][:, None]
    has = rng.random((len(stars), len(PROPERTIES)), dtype=np.float32) < share * pull
    kind = rng.choice(len(KINDS), len(stars), p=list(KINDS.values()))
    for names, chosen in ((STARS, stars), (tuple(KINDS), kind)):
        for k, name in enumerate(names):
            has[:, PROPERTIES.index(name)] = chosen == k
    for name in TASTES:
        has[:, PROPERTIES.index(name)] = rng.random(len(stars)) < TASTE_SHARE
    return has


def _city_names(count: int, rng: np.random.Generator) -> list[str]:
    """Invent names with a country, quoted for CSV as the official files do."""
    n, parts = len(SYLLABLES), 3 if count < len(SYLLABLES) ** 3 // 2 else 5
    codes = rng.choice(n**parts, count, replace=False)
    names = ["".join(SYLLABLES[code // n**k % n] for k in range(parts)).capitalize() for code in codes.tolist()]
    where = rng.integers(0, len(COUNTRIES), count).tolist()
    return [f'"{name}, {COUNTRIES[k]}"' for name, k in zip(names, where, strict=True)]
