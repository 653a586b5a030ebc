"""Simulated files in the form of the RecSys Challenge 2019 (trivago), with the true click probabilities beside them.

**World.** A city is made of districts, a district of 26 to 44 items. An item has stars and other named properties, a
typical price (district level, stars, own part) and a quality (stars, rating, some properties, and a hidden part).

**Session.** A session is a chain of episodes: searches, filters or a new sort order (they change the list), then touches
(images, info, rating, deals, search for the item), then a clickout. A list shows up to 25 items of the district, ordered
by quality, popularity and chance, by how well they match the filters, or by the chosen sort order.

**Choice model** (McFadden 1974, conditional logit). With everything before the click given, item j of the list at
position k is clicked with probability proportional to ``exp(U_j)``,

    U_j = -a·ln k + b·[k = 1] + a_price·z_j + quality_j + taste_u·x_j + a_filter·match_j + S_j + N_j

where ``a`` and ``b`` are larger at a session's last clickout, ``z`` is the log price standardised within the list, ``x``
are properties of the item, ``match`` is the share of the active filters it meets, and ``N`` favours the places just
below the item touched last. ``S`` is the memory of touches: a touch sets it to the strength of its action (plus a little
for the number of images), every later touch multiplies it by ``memory``, every change of the list by ``memory_relist``.
Touches come from the same utility without ``S`` and ``N``, scaled by ``touch_scale``, so they tell of taste as well.
The written probabilities are these, given the touches that happened; ranking by them is the best any model can do in
expectation. Everything in the formula is visible in the files, or can be estimated from them, but a user's taste and
the hidden part of quality.

**Sources.** Shares and sizes: the challenge's published statistics (16 M actions, 911 k training sessions) and, where
those are silent, counts over a public sample of its log. Constants were set before any model was trained on these files.

Run ``python competitions/trivago2019/simulate.py --sessions 20000 --out DIR``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fastrec.errors import DataError, FastrecError
from fastrec.files import atomic_folder

FILES = ("train.csv", "test.csv", "item_metadata.csv", "ground_truth.csv", "true_probabilities.parquet")
LOG_COLUMNS = (
    "user_id,session_id,timestamp,step,action_type,reference,platform,city,device,current_filters,impressions,prices"
).split(",")
TRUTH_COLUMNS = "user_id,session_id,timestamp,step,reference,impressions".split(",")
ACTIONS = (
    "search for destination,search for poi,change of sort order,filter selection,search for item,"
    "interaction item image,interaction item info,interaction item rating,interaction item deals,clickout item"
).split(",")
DESTINATION, POI, SORT, FILTER, SEARCH_ITEM, IMAGE, INFO, RATING, DEALS, CLICKOUT = range(10)
DEVICES = ("mobile", "desktop", "tablet")
PLATFORMS = (
    "BR US JP IN UK DE AU MX MY TR CA ES IT FR AR RU PL NL CO PH ZA NZ TW CH SE AT BE CL HK ID SG KR PT IE DK NO FI GR "
    "HU RO CZ IL AE TH PE EC UY VN CN BG HR RS SI SK AA"
).split()
COUNTRIES = (
    "Brazil USA Japan India Germany Australia Mexico Malaysia Turkey Canada Spain Italy France Argentina Russia Poland "
    "Netherlands Colombia Portugal Austria Greece Sweden"
).split()
SYLLABLES = "al ber cor dan el far gor hal is jor kel lor mar nor ost per quin ros sal tor ul ven wes yar".split()
SORTS = ("interaction sort button", "price only", "rating only", "distance only")
SORT_FILTERS = ("Sort by Price", "Focus on Rating", "Focus on Distance")
FILTERS = (
    "Hotel,5 Star,Resort,4 Star,Motel,Hostal (ES),3 Star,Very Good Rating,Free WiFi (Combined),Breakfast Included,"
    "Good Rating,Excellent Rating,Swimming Pool (Combined Filter),2 Star,Car Park,Spa (Wellness Facility),"
    "Serviced Apartment,Air Conditioning,Pet Friendly,Beach"
).split(",")
FACILITIES = (
    "Bicycle Hire,Laundry,Garden,Terrace,Library,Sauna,Gym,Bar,Restaurant,Playground,Lift,Safe,Minibar,Balcony,Bathtub,"
    "Desk,Kitchen,Fireplace,Billiards,Tennis,Golf,Ski Store,Boat Trips,Airport Bus,Concierge,Meeting Room,Cash Machine,"
    "Gift Shop,Childcare,Hairdresser,Television,Kettle,Heating,Fishing"
).split(",")
OFFERS = ("", " (Extra Charge)", " on Request", " Nearby")
PROPERTIES = (FILTERS + ["1 Star"] + [f + o for o in OFFERS for f in FACILITIES])[:157]
TASTES = ("Swimming Pool (Combined Filter)", "Breakfast Included", "Pet Friendly", "Beach", "Spa (Wellness Facility)")
LIST = 25  # places in a list


@dataclass(frozen=True)
class Constants:
    """Every number of the simulation. P: published for the challenge; S: counted in the sample; C: calibrated."""

    items_per_session: float = 0.77  # P: 927 k items to 1.2 M sessions
    district_items: tuple[int, int] = (26, 44)  # smallest and largest district; C
    test_share: float = 0.25  # P: two of eight days
    start: int = 1541030400  # P: 2018-11-01 00:00 UTC, seconds
    days: int = 8  # P
    new_user: float = 0.879  # S: 3,492 users to 3,973 sessions
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
    more_sort: float = 2.2
    more_filter: float = 0.5
    more_item: float = 0.4
    carried_filters: float = 0.06  # S: sessions that start with filters on
    sort_shares: tuple[float, ...] = (0.78, 0.11, 0.11)  # S: price, rating, distance
    # Touches
    touched: tuple[float, float] = (0.38, 0.4)  # S: episodes with a touch, first and later
    runs_mu: float = -0.65  # S: further runs of an episode: Poisson, rate lognormal over sessions
    runs_sd: float = 1.5
    max_runs: int = 150
    touch_types: tuple[float, ...] = (0.63, 0.15, 0.115, 0.105)  # P: image runs, info, rating, deals
    images_mu: float = 1.68  # S: images of a run, lognormal: median 5, mean 10
    images_sd: float = 1.20
    max_images: int = 150
    stay: float = 0.35  # S: the next run is about the same item
    stray: float = 0.06  # S: a touch of an item that is not in the list
    touch_scale: float = 0.9  # C
    touch_position: float = 0.75  # S, C
    touch_first: float = 0.25  # S, C
    # Choice (C unless marked)
    position: tuple[float, float] = (0.55, 0.76)  # a: earlier clickouts, last clickout
    first_place: tuple[float, float] = (0.4, 0.82)  # b
    price: float = -0.6  # S: clicked price at the .39 quantile of its list
    price_device: tuple[float, ...] = (1.1, 0.85, 1.0)
    price_sorted: float = 1.6  # factor when sorted by price
    filter_match: float = 1.2
    taste_sd: float = 0.13
    display_quality: float = 0.30
    star_quality: float = 0.5
    property_quality: float = 0.7
    hidden_quality: float = 0.30
    strength: tuple[float, ...] = (5.4, 4.8, 5.2, 3.5, 3.6, 1.3)  # search, image, info, rating, deals, clickout; S, C
    per_log_image: float = 0.7
    memory: float = 0.65
    memory_relist: float = 0.25
    below: float = 2.3  # N at the place right below the last touched
    below_reach: float = 2.5  # places


@dataclass(frozen=True)
class SimulationSummary:
    """What was written.

    Args:
        out: the folder.
        sessions, train_sessions, test_sessions: numbers of sessions.
        train_rows, test_rows: actions in the two logs.
        items: rows of item_metadata.csv.
        clickouts, candidates: clickouts, and places in all their lists.
        oracle_mrr: expected MRR over the test targets when ranking by the true probability.
        seconds: wall time.
    """

    out: Path
    sessions: int
    train_sessions: int
    test_sessions: int
    train_rows: int
    test_rows: int
    items: int
    clickouts: int
    candidates: int
    oracle_mrr: float
    seconds: float


def expected_mrr(probabilities: pa.ListArray | np.ndarray, offsets: np.ndarray | None = None) -> float:
    """Expected MRR of ranking every list by its true probabilities: the mean of sum_k p_(k) / k, p_(1) ≥ p_(2) ≥ ….

    Args:
        probabilities: a list column, one list of probabilities per target; or the values of all lists, float ``[n]``.
        offsets: int ``[lists + 1]``, where each list starts in the values; only with an array of values.

    Returns:
        The mean over lists of E[1 / rank].

    Raises:
        DataError: no list, an empty list, or probabilities that do not sum to 1 (within 1e-3).
    """
    if offsets is None:
        column = probabilities.combine_chunks() if isinstance(probabilities, pa.ChunkedArray) else probabilities
        offsets, probabilities = column.offsets.to_numpy(), column.values.to_numpy(zero_copy_only=False)
    p, offsets = np.asarray(probabilities, np.float64), np.asarray(offsets, np.int64)
    sizes = np.diff(offsets)
    if not len(sizes) or sizes.min() < 1:
        raise DataError("there is no list, or an empty one", column="probabilities")
    p = p[offsets[0] : offsets[-1]]
    starts = offsets[:-1] - offsets[0]
    wrong = np.abs(np.add.reduceat(p, starts) - 1) > 1e-3
    if wrong.any():
        raise DataError("the probabilities do not sum to 1", column="probabilities", row=int(wrong.argmax()))
    rows = np.repeat(np.arange(len(sizes)), sizes)
    ranked = p[np.lexsort((-p, rows))]
    return float(np.sum(ranked / (np.arange(len(p)) - starts[rows] + 1)) / len(sizes))


# ---------------------------------------------------------------------------------------------------------- the world


@dataclass
class _World:
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


def _make_world(c: Constants, sessions: int, rng: np.random.Generator) -> _World:
    low, high = c.district_items
    districts = max(6, round(c.items_per_session * sessions / ((low + high) / 2)))
    size = rng.integers(low, high + 1, districts)
    first = np.concatenate([[0], np.cumsum(size)[:-1]])
    items = int(size.sum())
    weight = (np.arange(districts) + 6.0) ** -0.75  # districts 0, 1, … are the busiest
    # Busy cities have more districts: a new city starts more and more often down the list.
    city = np.cumsum(rng.random(districts) < np.clip(np.arange(districts) / districts + 0.3, 0, 1))
    city -= city[0]
    stars = rng.choice(5, items, p=[0.05, 0.15, 0.38, 0.32, 0.10])
    has = _draw_properties(stars, rng)
    tone = (stars - 2.3) / 1.0
    effects = np.zeros(len(PROPERTIES))
    effects[[PROPERTIES.index(t) for t in TASTES]] = c.property_quality
    visible = c.star_quality * tone + (has - has.mean(0)) @ effects
    quality = visible + rng.normal(0, c.hidden_quality, items)
    rating = quality + rng.normal(0, 0.2, items)
    spread = (rating - rating.mean()) / rating.std()
    for name, least in (("Good Rating", -0.5), ("Very Good Rating", 0.3), ("Excellent Rating", 1.1)):
        has[:, PROPERTIES.index(name)] = spread >= least
    liked = has[:, [PROPERTIES.index(t) for t in TASTES]].astype(np.float64)
    taste = np.column_stack([(liked - liked.mean(0)) / (liked.std(0) + 1e-9), tone])
    log_price = np.repeat(rng.normal(4.35, 0.6, districts), size) + 0.27 * tone + rng.normal(0, 0.33, items)
    item_ids = np.sort(rng.choice(11_300_000 // 2, items, replace=False)) * 2 + 5001
    item_ids = rng.permutation(item_ids)
    cities = _city_names(int(city[-1]) + 1, rng)
    pois = [f"{cities[k][1:].split(',')[0]} Station {d}" for d, k in enumerate(city)]
    groups = [pa.array(item_ids).cast(pa.string()), pa.array(cities), pa.array(pois)]
    groups += [pa.array(SORTS), pa.array(list(SORT_FILTERS) + FILTERS)]
    at = np.cumsum([len(g) for g in groups])
    f32 = np.float32
    return _World(
        first, size, np.cumsum(weight) / weight.sum(), city, quality.astype(f32),
        (c.display_quality * quality + rng.normal(0, 0.7, items)).astype(f32), rating.astype(f32), log_price.astype(f32),
        taste.astype(f32), has, item_ids, pa.concat_arrays(groups), *map(int, at[:4]),
    )  # fmt: skip


def _draw_properties(stars: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Properties of every item, bool ``[items, properties]``: exactly one star class and one kind; more with more stars."""
    base = np.clip(rng.beta(0.9, 2.5, len(PROPERTIES)), 0.03, 0.9)
    pull = np.linspace(0.6, 1.4, 5)[stars][:, None]
    has = rng.random((len(stars), len(PROPERTIES)), dtype=np.float32) < (base * pull).astype(np.float32)
    for names, pick in (
        (["1 Star", "2 Star", "3 Star", "4 Star", "5 Star"], stars),
        (
            ["Hotel", "Resort", "Motel", "Hostal (ES)", "Serviced Apartment"],
            rng.choice(5, len(stars), p=[0.62, 0.12, 0.1, 0.08, 0.08]),
        ),
    ):
        for k, name in enumerate(names):
            has[:, PROPERTIES.index(name)] = pick == k
    for name in TASTES:
        has[:, PROPERTIES.index(name)] = rng.random(len(stars)) < 0.4
    return has


def _city_names(count: int, rng: np.random.Generator) -> list[str]:
    """Invented names with a country, quoted for CSV as the official files do."""
    n, parts = len(SYLLABLES), 3 if count < len(SYLLABLES) ** 3 else 5
    codes = rng.choice(n**parts, count, replace=False)
    names = ["".join(SYLLABLES[code // n**k % n] for k in range(parts)).capitalize() for code in codes.tolist()]
    where = rng.integers(0, len(COUNTRIES), count).tolist()
    return [f'"{name}, {COUNTRIES[k]}"' for name, k in zip(names, where, strict=True)]


# ------------------------------------------------------------------------------------------------- sessions, episodes


@dataclass
class _Sessions:
    number: np.ndarray  # int64 [n], over all blocks
    user: np.ndarray  # int64 [n], number of the user's first session
    start: np.ndarray  # int64 [n], seconds
    test: np.ndarray  # bool [n]
    device: np.ndarray  # int64 [n]
    platform: np.ndarray  # int64 [n]
    clickouts: np.ndarray  # int64 [n]
    episodes: np.ndarray  # int64 [n]: clickouts, and one without if the session does not end with a clickout
    rate: np.ndarray  # float64 [n], mean number of further runs
    taste: np.ndarray  # float32 [n, tastes]


def _draw_sessions(c: Constants, first: int, n: int, tastes: int, rng: np.random.Generator) -> _Sessions:
    new = rng.random(n) < c.new_user
    new[0] = True
    who = np.cumsum(new) - 1
    users = int(who[-1]) + 1
    day = 86_400
    hour = rng.beta(2.2, 1.5, n) * day  # busier in the evening
    own = rng.integers(0, c.days, n) * day + hour
    gap = rng.lognormal(np.log(7 * 3600), 1.0, n)  # a user comes back after hours
    elapsed = np.cumsum(np.where(new, 0, gap))
    start = (own[np.flatnonzero(new)][who] + elapsed - elapsed[np.flatnonzero(new)][who]) % (c.days * day)
    start = start[np.lexsort((start, who))]
    test = start >= (1 - c.test_share) * c.days * day
    clicks = 1 + rng.choice(6, n, p=[*c.clickouts, 1 - sum(c.clickouts)])
    clicks[clicks == 6] += rng.geometric(1 - c.clickouts_tail, int((clicks == 6).sum())) - 1
    clicks = np.minimum(clicks, c.max_clickouts)
    clicks[~test & (rng.random(n) < c.clickless)] = 0
    tail = (clicks == 0) | (~test & (rng.random(n) < c.tail))
    shares = (np.arange(len(PLATFORMS)) + 3.0) ** -1.3
    return _Sessions(
        first + np.arange(n), first + np.flatnonzero(new)[who], c.start + start.astype(np.int64), test,
        rng.choice(3, users, p=c.device_shares)[who], rng.choice(len(PLATFORMS), users, p=shares / shares.sum())[who],
        clicks, clicks + tail, rng.lognormal(c.runs_mu, c.runs_sd, n),
        rng.normal(0, c.taste_sd, (users, tastes)).astype(np.float32)[who],
    )  # fmt: skip


@dataclass
class _State:
    """What is known of the sessions that are still going on, one row each; W is the size of the largest district."""

    row: np.ndarray  # [n], the session
    district: np.ndarray  # [n]
    log_price: np.ndarray  # float32 [n, W]
    worth: np.ndarray  # float32 [n, W], quality and taste
    memory: np.ndarray  # float32 [n, W], S
    noise: np.ndarray  # float32 [n, W], chance in the default order
    match: np.ndarray  # float32 [n, W], share of the filters met
    order: np.ndarray  # int64 [n, LIST], the list as places in the district
    length: np.ndarray  # int64 [n], of the list
    sort: np.ndarray  # int64 [n]: 0 default, 1 price, 2 rating, 3 distance
    filters: np.ndarray  # int64 [n, 4], codes into FILTERS, -1 = none
    last: np.ndarray  # int64 [n], place in the district of what was touched last, -1 = nothing

    def keep(self, rows: np.ndarray) -> None:
        for name, value in vars(self).items():
            setattr(self, name, value[rows])


@dataclass
class _Log:
    """Events in columns, collected over episodes: a run of equal rows is one event with a count."""

    events: dict[str, list[np.ndarray]] = field(default_factory=dict)
    clicks: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def add(self, kind: str, n: int, **columns: np.ndarray | int) -> None:
        store = getattr(self, kind)
        for name, value in columns.items():
            store.setdefault(name, []).append(np.broadcast_to(np.asarray(value), (n, *np.shape(value)[1:])))

    def joined(self, kind: str) -> dict[str, np.ndarray]:
        return {name: np.concatenate(parts) for name, parts in getattr(self, kind).items()}


class _Block:
    """One block of sessions, simulated episode by episode over all of its sessions at once."""

    def __init__(self, world: _World, c: Constants, first: int, n: int, rng: np.random.Generator) -> None:
        self.world, self.c, self.rng, self.log = world, c, rng, _Log()
        self.sessions = _draw_sessions(c, first, n, world.taste.shape[1], rng)
        self.width = c.district_items[1]

    def run(self) -> None:
        s, n, w = self.sessions, len(self.sessions.number), self.width
        wide = [np.zeros((n, w), np.float32) for _ in range(5)]
        st = _State(
            np.arange(n), np.zeros(n, np.int64), *wide, np.zeros((n, LIST), np.int64), np.zeros(n, np.int64),
            np.zeros(n, np.int64), np.full((n, 4), -1), np.full(n, -1),
        )  # fmt: skip
        for episode in range(int(s.episodes.max())):
            alive = s.episodes[st.row] > episode
            if not alive.all():
                st.keep(alive)
            self._search(st, episode)
            value = self._list_value(st)
            self._touch(st, episode, value)
            clicking = episode < s.clickouts[st.row]
            if not clicking.all():
                st.keep(clicking)
                value = value[clicking]
            self._click(st, episode, value)

    def _event(self, st: _State, episode: int, who: np.ndarray, slot: int, action, reference, count=1, filters=False):
        """Log one event for the rows `who` of the state; slots order the events of an episode."""
        n = len(who)
        cells = np.full((n, 5), -1)
        if filters:
            cells[:, 0] = st.sort[who] - 1
            cells[:, 1:] = np.where(st.filters[who] >= 0, st.filters[who] + len(SORT_FILTERS), -1)
        self.log.add(
            "events", n, session=st.row[who], episode=episode, slot=slot, action=action, reference=reference,
            count=count, city=self.world.city[st.district[who]], filters=cells, click=-1,
        )  # fmt: skip

    def _search(self, st: _State, episode: int) -> None:
        """Searches, sort orders and filters of an episode; new lists for those who did any."""
        c, rng, world, late = self.c, self.rng, self.world, int(episode > 0)
        n = len(st.row)
        to, poi, sort, chosen = (rng.random(n) < p[late] for p in (c.destination, c.poi, c.sort, c.filter))
        moved = to if late else np.ones(n, bool)
        self._enter_district(st, np.flatnonzero(moved), late)
        carried = chosen if late else chosen | (rng.random(n) < c.carried_filters)
        st.sort[sort] = 1 + rng.choice(3, int(sort.sum()), p=c.sort_shares)
        self._choose_filters(st, np.flatnonzero(carried))
        self._relist(st, np.flatnonzero(moved | poi | sort | chosen | carried))

        def more(mean: float, who: np.ndarray) -> np.ndarray:
            return rng.geometric(1 / (1 + mean), len(who))

        who = np.flatnonzero(to)
        self._event(st, episode, who, 0, DESTINATION, world.city_at + world.city[st.district[who]], more(c.more_destination, who))  # fmt: skip
        who = np.flatnonzero(poi)
        self._event(st, episode, who, 1, POI, world.poi_at + st.district[who], more(c.more_poi, who), filters=True)
        who = np.flatnonzero(sort)
        self._event(st, episode, who, 2, SORT, world.sort_at, more(c.more_sort, who))
        self._event(st, episode, who, 3, SORT, world.sort_at + st.sort[who])
        self._event(st, episode, who, 4, FILTER, world.filter_at + st.sort[who] - 1, filters=True)
        for k in range(st.filters.shape[1]):
            who = np.flatnonzero(chosen & (st.filters[:, k] >= 0))
            at = world.filter_at + len(SORT_FILTERS) + st.filters[who, k]
            self._event(st, episode, who, 5 + k, FILTER, at, more(c.more_filter, who), filters=True)

    def _enter_district(self, st: _State, who: np.ndarray, late: int) -> None:
        world, rng, w, n = self.world, self.rng, self.width, len(who)
        st.district[who] = np.searchsorted(world.visits, rng.random(n)).clip(max=len(world.visits) - 1)
        items = self._items(st.district[who])
        date = rng.normal(0, 0.15, (n, 1)).astype(np.float32)
        st.log_price[who] = world.log_price[items] + date + 0.08 * rng.standard_normal((n, w), np.float32)
        taste = self.sessions.taste[st.row[who]]
        st.worth[who] = world.quality[items]
        for k in range(taste.shape[1]):  # a sum of few products: faster than gathering [n, W, tastes]
            st.worth[who] += taste[:, k : k + 1] * world.taste[:, k][items]
        st.memory[who], st.last[who], st.match[who] = 0, -1, 0
        if late:
            st.sort[who], st.filters[who] = 0, -1

    def _items(self, district: np.ndarray) -> np.ndarray:
        last = self.world.first[district] + self.world.size[district] - 1
        return np.minimum(self.world.first[district][:, None] + np.arange(self.width), last[:, None])

    def _choose_filters(self, st: _State, who: np.ndarray) -> None:
        n, rng = len(who), self.rng
        popular = -0.09 * np.arange(len(FILTERS))
        best = np.argsort(-(popular + rng.gumbel(size=(n, len(FILTERS)))), axis=1)[:, : st.filters.shape[1]]
        keep = np.arange(best.shape[1]) < rng.choice([1, 2, 3, 4], n, p=[0.45, 0.2, 0.2, 0.15])[:, None]
        st.filters[who] = np.where(keep, best, -1)
        items = self._items(st.district[who])
        met = np.zeros((n, self.width), np.float32)
        for k in range(best.shape[1]):  # FILTERS are the first PROPERTIES
            met += self.world.has[items, best[:, k : k + 1]] & keep[:, k : k + 1]
        st.match[who] = met / keep.sum(1, keepdims=True)

    def _relist(self, st: _State, who: np.ndarray) -> None:
        """Order the district for `who` and cut the list; what was touched on the former list is half forgotten."""
        c, rng, world, n = self.c, self.rng, self.world, len(who)
        items = self._items(st.district[who])
        sort = st.sort[who][:, None]
        score = world.display[items] + 0.7 * rng.standard_normal((n, self.width), np.float32)
        some = np.flatnonzero(sort)
        other = np.stack(
            [-st.log_price[who[some]], world.rating[items[some]], score[some] - world.display[items[some]]]
        )
        score[some] = np.take_along_axis(other, sort[some].reshape(1, -1, 1) - 1, axis=0)[0]
        score += 3 * st.match[who]
        score[np.arange(self.width) >= world.size[st.district[who]][:, None]] = -np.inf
        st.order[who] = np.argsort(-score, axis=1, kind="stable")[:, :LIST]
        u = rng.random(n)
        some_of = np.where(u < c.short_list, rng.integers(1, 11, n), rng.integers(11, 24, n))
        full = c.short_list + c.nearly_full
        st.length[who] = np.where(u >= 1 - c.full_list, LIST, np.where((u >= c.short_list) & (u < full), 24, some_of))
        st.memory[who] *= c.memory_relist

    def _list_value(self, st: _State) -> np.ndarray:
        """The part of U that touches and clicks share, float32 ``[n, LIST]``; -inf beyond the end of the list."""
        c = self.c
        seen = np.arange(LIST) < st.length[:, None]
        price = np.where(seen, np.take_along_axis(np.log(_round_price(st.log_price)), st.order, 1), 0)
        count = st.length[:, None]
        centred = np.where(seen, price - price.sum(1, keepdims=True) / count, 0)
        z = np.clip(centred / np.sqrt((centred**2).sum(1, keepdims=True) / count + 1e-4), -2.5, 2.5)
        factor = c.price * np.asarray(c.price_device)[self.sessions.device[st.row]]
        factor = np.where(st.sort == 1, c.price_sorted, 1) * factor
        value = np.take_along_axis(st.worth + c.filter_match * st.match, st.order, 1)
        value += factor[:, None].astype(np.float32) * z.astype(np.float32)
        value[~seen] = -np.inf
        return value

    def _touch(self, st: _State, episode: int, value: np.ndarray) -> None:
        """Draw what is touched before the click, log it, and bring the memory up to date."""
        c, rng, n, late = self.c, self.rng, len(st.row), int(episode > 0)
        searched = rng.random(n) < c.search_item[late]
        runs = np.minimum(1 + rng.poisson(self.sessions.rate[st.row]), c.max_runs)
        runs = runs * (rng.random(n) < c.touched[late]) + searched
        row = np.repeat(np.arange(n), runs)
        turn = np.arange(len(row)) - np.repeat(np.cumsum(runs) - runs, runs)
        utility = c.touch_scale * value + _position_effect(c.touch_position, c.touch_first)
        place = st.order[row, _draw(_softmax(utility), row, rng)]
        stray = rng.random(len(row)) < c.stray
        place = np.where(stray, (rng.random(len(row)) * self.world.size[st.district[row]]).astype(np.int64), place)
        stays = (rng.random(len(row)) < c.stay) & (turn > 0)
        place = place[np.maximum.accumulate(np.where(stays, 0, np.arange(len(row))))]
        action = IMAGE + rng.choice(4, len(row), p=c.touch_types)
        action[(turn == 0) & searched[row]] = SEARCH_ITEM
        images = np.clip(np.exp(rng.normal(c.images_mu, c.images_sd, len(row))), 1, c.max_images).astype(np.int64)
        again = np.where(action == SEARCH_ITEM, rng.geometric(1 / (1 + c.more_item), len(row)), 1)
        count = np.where(action == IMAGE, images, again)
        self._event(st, episode, row, 20 + turn, action, self.world.first[st.district[row]] + place, count)
        strength = np.asarray(c.strength)[action - SEARCH_ITEM] + c.per_log_image * np.log(images) * (action == IMAGE)
        st.memory *= (c.memory ** np.minimum(runs, 60)).astype(np.float32)[:, None]
        # Rows are in order of time, and of equal indices the last one stays: an item keeps its latest touch.
        st.memory[row, place] = strength * c.memory ** np.minimum(runs[row] - 1 - turn, 60)
        done = np.flatnonzero(runs)
        st.last[done] = place[np.cumsum(runs)[done] - 1]

    def _click(self, st: _State, episode: int, value: np.ndarray) -> None:
        """Draw the click from its probabilities, log it with its list, and remember it."""
        c, rng, n, s = self.c, self.rng, len(st.row), self.sessions
        final = (episode == s.clickouts[st.row] - 1).astype(np.int64)
        position = np.stack([_position_effect(c.position[k], c.first_place[k]) for k in (0, 1)])[final]
        at = (st.order == st.last[:, None]).argmax(1)
        known = (st.order[np.arange(n), at] == st.last) & (at < st.length)
        below = np.arange(LIST) - at[:, None]
        near = np.where(known[:, None] & (below > 0), c.below * np.exp((1 - below) / c.below_reach), 0)
        p = _softmax(value + position + np.take_along_axis(st.memory, st.order, 1) + near.astype(np.float32))
        rows = np.arange(n)
        place = st.order[rows, _draw(p, rows, rng)]
        beyond = (rng.random(n) * self.world.size[st.district]).astype(np.int64)  # any item of the district
        listed = ((st.order == beyond[:, None]) & (np.arange(LIST) < st.length[:, None])).any(1)
        out = (rng.random(n) < c.outside) & ~listed & ~(s.test[st.row] & (final == 1))
        place = np.where(out, beyond, place)
        first = self.world.first[st.district]
        done = sum(map(len, self.log.clicks.get("length", [])))
        self._event(st, episode, rows, 900, CLICKOUT, first + place, filters=True)
        self.log.events["click"][-1] = done + rows
        price = _round_price(np.take_along_axis(st.log_price, st.order, 1)).astype(np.int32)
        self.log.add(
            "clicks", n, items=first[:, None] + st.order, price=price, p=p, length=st.length.copy(), final=final
        )
        st.memory *= c.memory
        st.memory[rows, place] = c.strength[-1]
        st.last = place


def _round_price(log_price: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(np.exp(log_price)), 5, 9999)


def _position_effect(slope: float, first: float) -> np.ndarray:
    effect = -slope * np.log(np.arange(1, LIST + 1))
    effect[0] += first
    return effect.astype(np.float32)


def _softmax(utility: np.ndarray) -> np.ndarray:
    e = np.exp((utility - utility.max(1, keepdims=True)).astype(np.float64))
    return e / e.sum(1, keepdims=True)


def _draw(p: np.ndarray, row: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One place for every entry of ``row`` (sorted), drawn from that row's probabilities, int64."""
    cut = np.cumsum(p, axis=1)
    cut += np.arange(len(p))[:, None]
    last = p.shape[1] - 1 - (p[:, ::-1] > 0).argmax(1)  # rounding must never choose a place of probability 0
    found = np.searchsorted(cut.ravel(), row + rng.random(len(row)), side="right") - row * p.shape[1]
    return np.clip(found, 0, last[row])


# ------------------------------------------------------------------------------------------------------------ writing


def _strings(codes: np.ndarray, letters: str) -> pa.Array:
    """Strings of equal length from letter codes ``[n, length]``."""
    data = np.frombuffer(letters.encode(), np.uint8)[codes]
    offsets = np.arange(len(codes) + 1, dtype=np.int32) * codes.shape[1]
    return pa.StringArray.from_buffers(len(codes), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data)))


def _names(number: np.ndarray, *, bits: int, length: int, letters: str, salt: int) -> pa.Array:
    """Distinct scrambled names of distinct numbers: odd multiples and shifted xors are one to one modulo 2^bits."""
    mask = np.uint64(2**bits - 1)
    x = number.astype(np.uint64) + np.uint64(salt % 2**20 << 30)
    for odd in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9):
        x = (x * np.uint64(odd)) & mask
        x ^= x >> np.uint64(bits // 2 + 1)
    width = bits // length
    digits = (x[:, None] >> (np.arange(length, dtype=np.uint64) * np.uint64(width))) & np.uint64(2**width - 1)
    return _strings(digits.astype(np.int64), letters)


def _lists(values: pa.Array, sizes: np.ndarray) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)), values)


def _csv(columns: list[pa.Array]) -> memoryview:
    """CSV lines of string columns; what needs quotes has them already."""
    columns = [pc.fill_null(column, "") for column in columns]
    columns[-1] = pc.binary_join_element_wise(columns[-1], "\n", "")
    lines = pc.binary_join_element_wise(*columns, ",")
    ends = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(lines.buffers()[2] or b"")[ends[0] : ends[-1]] if len(lines) else memoryview(b"")


class _Times:
    """Seconds before an action, from its kind: share of 0 s, median of the others, sd of their logarithm (S)."""

    zero = np.array([0.05, 0.35, 0.15, 0.55, 0.05, 0.40, 0.35, 0.15, 0.12, 0.0])
    median = np.array([70.0, 60.0, 12.0, 18.0, 60.0, 14.0, 18.0, 20.0, 22.0, 34.0])
    spread = np.array([1.5, 1.4, 1.0, 1.2, 1.3, 1.1, 1.2, 1.2, 1.2, 1.35])
    zero_within = 0.85  # between the images of one run
    longest = 4 * 3600

    @classmethod
    def draw(cls, action: np.ndarray, repeat: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        n = len(action)
        wait = np.exp(cls.spread[action] * rng.standard_normal(n)) * cls.median[action]
        zero = rng.random(n) < np.where(repeat, cls.zero_within, cls.zero[action])
        return np.where(zero, 0, np.clip(wait, 1, cls.longest)).astype(np.int64)


class _Writer:
    """Writes blocks of sessions to the open files of one folder, and counts."""

    def __init__(self, folder: Path, world: _World, seed: int) -> None:
        self.world, self.seed, self.folder = world, seed, folder
        self.rows = {"train": 0, "test": 0}
        self.sessions = {"train": 0, "test": 0}
        self.clickouts = self.candidates = self.targets = 0
        self.gain = 0.0  # sum of E[1 / rank] over the targets

    def __enter__(self) -> _Writer:
        self.files = {name: (self.folder / f"{name}.csv").open("wb") for name in ("train", "test", "ground_truth")}
        for name, file in self.files.items():
            columns = TRUTH_COLUMNS if name == "ground_truth" else LOG_COLUMNS
            file.write((",".join(columns) + "\n").encode())
        schema = pa.schema(
            [("split", pa.dictionary(pa.int8(), pa.string())), ("session_id", pa.string()), ("step", pa.int64()),
             ("target", pa.bool_()), ("impressions", pa.list_(pa.int64())), ("probabilities", pa.list_(pa.float64()))]
        )  # fmt: skip
        self.truth = pq.ParquetWriter(
            self.folder / FILES[-1], schema, compression="zstd", use_dictionary=["split", "impressions"]
        )
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files.values():
            file.close()
        self.truth.close()

    def metadata(self) -> None:
        has = self.world.has
        names = pa.array(PROPERTIES).take(pa.array(np.nonzero(has)[1]))
        joined = pc.binary_join(_lists(names, has.sum(1)), "|")
        with (self.folder / "item_metadata.csv").open("wb") as file:
            file.write(b"item_id,properties\n")
            file.write(_csv([self.world.words[: len(has)], joined]))

    def block(self, block: _Block) -> None:
        """Write what one block of sessions did."""
        s, rng, world = block.sessions, block.rng, self.world
        events, clicks = block.log.joined("events"), block.log.joined("clicks")
        order = np.lexsort((events["slot"], events["episode"], events["session"]))
        rows = np.repeat(order, events["count"][order])
        repeat = np.concatenate([[False], rows[1:] == rows[:-1]])
        session, action, click = events["session"][rows], events["action"][rows], events["click"][rows]
        first = np.flatnonzero(np.concatenate([[True], session[1:] != session[:-1]]))
        lengths = np.diff(np.append(first, len(rows)))
        wait = _Times.draw(action, repeat, rng)
        wait[first] = 0
        passed = np.cumsum(wait)
        stamp = s.start[session] + passed - np.repeat(passed[first], lengths)
        step = np.arange(len(rows)) - np.repeat(first, lengths) + 1
        target = np.zeros(len(rows), bool)
        clicked = np.flatnonzero(click >= 0)
        target[clicked] = s.test[session[clicked]] & (clicks["final"][click[clicked]] == 1)
        user = _names(s.user, bits=60, length=12, letters="0123456789ABCDEFGHJKLMNPQRSTVWXYZ"[:32], salt=self.seed)
        name = _names(s.number, bits=52, length=13, letters="0123456789abcdef", salt=self.seed)

        seen = np.arange(LIST) < clicks["length"][:, None]
        item = clicks["items"][seen]
        listed = pc.binary_join(_lists(world.words.take(pa.array(item)), clicks["length"]), "|")
        prices = pc.binary_join(_lists(pa.array(clicks["price"][seen]).cast(pa.string()), clicks["length"]), "|")
        codes = events["filters"]
        some = np.flatnonzero((codes >= 0).any(1))
        active = codes[some] >= 0
        filters = pc.binary_join(
            _lists(world.words.take(pa.array(world.filter_at + codes[some][active])), active.sum(1)), "|"
        )
        filter_of = np.full(len(codes), -1)
        filter_of[some] = np.arange(len(some))

        def at(values: pa.Array, index: np.ndarray) -> pa.Array:
            return values.take(pa.array(index, mask=index < 0))

        reference = events["reference"][rows]
        columns = [
            at(user, session), at(name, session), pa.array(stamp).cast(pa.string()), pa.array(step).cast(pa.string()),
            at(pa.array(ACTIONS), action), at(world.words, np.where(target, -1, reference)),
            at(pa.array(PLATFORMS), s.platform[session]), at(world.words, world.city_at + events["city"][rows]),
            at(pa.array(DEVICES), s.device[session]), at(filters, filter_of[rows]), at(listed, click), at(prices, click),
        ]  # fmt: skip
        for split, mask in (("train", ~s.test[session]), ("test", s.test[session])):
            keep = pa.array(np.flatnonzero(mask))
            self.files[split].write(_csv([column.take(keep) for column in columns]))
            self.rows[split] += len(keep)
            self.sessions[split] += int((s.test == (split == "test")).sum())
        keep = pa.array(np.flatnonzero(target))
        answer = at(world.words, reference)
        truth = [*columns[:4], answer, columns[10]]
        self.files["ground_truth"].write(_csv([column.take(keep) for column in truth]))
        self._probabilities(block, clicks, rows[clicked], step[clicked], target[clicked], name)

    def _probabilities(self, block, clicks, event, step, target, name) -> None:
        """True probabilities of every clickout, in the order of the logs."""
        log = block.log.joined("events")
        click, session = log["click"][event], log["session"][event]
        sizes = clicks["length"][click]
        seen = np.arange(LIST) < sizes[:, None]
        p = clicks["p"][click][seen]
        split = pa.DictionaryArray.from_arrays(
            pa.array(block.sessions.test[session].astype(np.int8)), ["train", "test"]
        )
        item = self.world.item_ids[clicks["items"][click][seen]]
        columns = [split, name.take(pa.array(session)), pa.array(step), pa.array(target)]
        columns += [_lists(pa.array(item), sizes), _lists(pa.array(p), sizes)]
        self.truth.write_table(pa.table(columns, schema=self.truth.schema))
        self.clickouts += len(click)
        self.candidates += len(p)
        if target.any():
            own = np.repeat(target, sizes)
            starts = np.concatenate([[0], np.cumsum(sizes[target])])
            self.gain += expected_mrr(p[own], starts) * int(target.sum())
            self.targets += int(target.sum())


def simulate(
    sessions: int,
    out: str | Path,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    constants: Constants | None = None,
    block_sessions: int = 20_000,
) -> SimulationSummary:
    """Write train.csv, test.csv, item_metadata.csv, ground_truth.csv and true_probabilities.parquet into ``out``.

    The same arguments give the same bytes. ``true_probabilities.parquet`` has one row per clickout: split ('train' or
    'test'), session_id, step, target (a row of ground_truth.csv), impressions (list of int64) and probabilities (list
    of float64, given that the click is on an item of the list).

    Args:
        sessions: number of sessions, both logs together, at least 100; about a quarter are test sessions.
        out: the folder to make; a former simulation there is replaced, any other folder with files is refused.
        seed: of all random numbers, at least 0.
        progress: called with (sessions done, sessions) after every block.
        constants: other constants than the frozen ones.
        block_sessions: sessions held in memory at once; another value gives other files.

    Returns:
        What was written, and the oracle's expected MRR over the test targets.

    Raises:
        DataError: a bad argument, or ``out`` holds other files.
        WriteError: the file system refused; ``out`` is as it was.
    """
    out, c, began = Path(out), constants or Constants(), time.perf_counter()
    _check(sessions, out, seed, block_sessions)
    world = _make_world(c, sessions, np.random.default_rng([seed, 0]))
    with atomic_folder(out) as folder, _Writer(folder, world, seed) as writer:
        writer.metadata()
        for number, first in enumerate(range(0, sessions, block_sessions), start=1):
            n = min(block_sessions, sessions - first)
            block = _Block(world, c, first, n, np.random.default_rng([seed, number]))
            block.run()
            writer.block(block)
            if progress is not None:
                progress(first + n, sessions)
    return SimulationSummary(
        out, sessions, writer.sessions["train"], writer.sessions["test"], writer.rows["train"], writer.rows["test"],
        len(world.item_ids), writer.clickouts, writer.candidates, writer.gain / max(writer.targets, 1),
        time.perf_counter() - began,
    )  # fmt: skip


def _check(sessions: int, out: Path, seed: int, block_sessions: int) -> None:
    for name, value, least in (("sessions", sessions, 100), ("seed", seed, 0), ("block_sessions", block_sessions, 1)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise DataError(f"{name} must be a whole number of at least {least}, not {value!r}")
    if out.exists() and not out.is_dir():
        raise DataError("is a file, not a folder", file=out, remedy="Name another folder")
    if out.is_dir():
        other = sorted(p.name for p in out.iterdir() if p.name not in FILES)
        if other:
            raise DataError(
                f"holds {other[0]!r}, which no simulation wrote", file=out, remedy="Name an empty or new folder"
            )


def main(argv: list[str] | None = None) -> int:
    """Command line: ``simulate.py --sessions N --out DIR [--seed S]``."""
    parser = argparse.ArgumentParser(description="Simulate the files of the RecSys Challenge 2019.")
    parser.add_argument("--sessions", type=int, default=20_000, help="number of sessions (default 20000)")
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers (default 0)")
    args = parser.parse_args(argv)
    try:
        done = simulate(
            args.sessions, args.out, seed=args.seed, progress=lambda k, n: print(f"{k:,} of {n:,} sessions")
        )
    except FastrecError as error:
        parser.exit(2, f"{error}\n")
    print(
        f"{done.out}: {done.train_rows:,} + {done.test_rows:,} actions, {done.candidates:,} candidates, {done.items:,} items"
    )
    print(f"oracle {done.oracle_mrr:.5f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
