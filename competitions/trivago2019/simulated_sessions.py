"""Simulated sessions, episode by episode over many sessions at once; ``simulate.py`` states the model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from competitions.trivago2019.simulated_world import (
    CLICKOUT,
    DESTINATION,
    FILTER,
    FILTERS,
    IMAGE,
    LIST,
    PLATFORMS,
    POI,
    SEARCH_ITEM,
    SORT,
    SORT_FILTERS,
    Constants,
    World,
)

LAST_SLOT = 1_000  # of an episode's events: the click


@dataclass
class Sessions:
    """A block's sessions, one entry each."""

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


def _draw_sessions(c: Constants, first: int, n: int, tastes: int, rng: np.random.Generator) -> Sessions:
    """Draw users, start times, devices and numbers of clickouts: all that a session has before its first action."""
    new = rng.random(n) < c.new_user
    new[0] = True
    who = np.cumsum(new) - 1
    users = int(who[-1]) + 1
    day = 86_400
    # Most users are in the Americas and East Asia: the log is busiest in the first hours of the day, UTC.
    hour = np.where(rng.random(n) < c.busy_hours, (rng.beta(2.2, 1.5, n) + 0.45) % 1, rng.random(n))
    own = (rng.integers(0, c.days, n) + hour) * day
    gap = rng.lognormal(np.log(c.return_hours * 3600), 1.0, n)
    elapsed = np.cumsum(np.where(new, 0, gap))
    start = (own[np.flatnonzero(new)][who] + elapsed - elapsed[np.flatnonzero(new)][who]) % (c.days * day)
    start = start[np.lexsort((start, who))]
    test = start >= (1 - c.test_share) * c.days * day
    clicks = 1 + rng.choice(6, n, p=[*c.clickouts, 1 - sum(c.clickouts)])
    clicks[clicks == 6] += rng.geometric(1 - c.clickouts_tail, int((clicks == 6).sum())) - 1
    clicks = np.minimum(clicks, c.max_clickouts)
    clicks[~test & (rng.random(n) < c.clickless)] = 0
    tail = (clicks == 0) | (~test & (rng.random(n) < c.tail))
    shares = (np.arange(len(PLATFORMS)) + c.platforms[0]) ** -c.platforms[1]
    return Sessions(
        first + np.arange(n), first + np.flatnonzero(new)[who], c.start + start.astype(np.int64), test,
        rng.choice(3, users, p=c.device_shares)[who], rng.choice(len(PLATFORMS), users, p=shares / shares.sum())[who],
        clicks, clicks + tail, rng.lognormal(c.runs_mu, c.runs_sd, n),
        rng.normal(0, c.taste_sd, (users, tastes)).astype(np.float32)[who],
    )  # fmt: skip


@dataclass
class _State:
    """The state of the sessions that have not ended, one row each; W is the size of the largest district."""

    row: np.ndarray  # [n], the session
    district: np.ndarray  # [n]
    log_price: np.ndarray  # float32 [n, W]
    worth: np.ndarray  # float32 [n, W], quality and taste
    memory: np.ndarray  # float32 [n, W], S
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


class Block:
    """One block of sessions, simulated episode by episode over all of its sessions at once."""

    def __init__(self, world: World, c: Constants, first: int, n: int, rng: np.random.Generator) -> None:
        self.world, self.c, self.rng, self.log = world, c, rng, _Log()
        self.sessions = _draw_sessions(c, first, n, world.taste.shape[1], rng)
        self.width = c.district_items[1]

    def run(self) -> None:
        s, n, w = self.sessions, len(self.sessions.number), self.width
        wide = [np.zeros((n, w), np.float32) for _ in range(4)]
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

    def _event(
        self,
        st: _State,
        episode: int,
        who: np.ndarray,
        slot: np.ndarray | int,
        action: np.ndarray | int,
        reference: np.ndarray | int,
        count: np.ndarray | int = 1,
        *,
        filters: bool = False,
        click: np.ndarray | int = -1,
    ) -> None:
        """Log one event for the rows `who` of the state; slots order the events of an episode."""
        n = len(who)
        if n == 0:
            return
        cells = np.full((n, 5), -1)
        if filters:
            cells[:, 0] = st.sort[who] - 1
            cells[:, 1:] = np.where(st.filters[who] >= 0, st.filters[who] + len(SORT_FILTERS), -1)
        self.log.add(
            "events", n, session=st.row[who], episode=episode, slot=slot, action=action, reference=reference,
            count=count, city=self.world.city[st.district[who]], filters=cells, click=click,
        )  # fmt: skip

    def _search(self, st: _State, episode: int) -> None:
        """Log an episode's searches, sort orders and filters; sessions with any get new lists."""
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
        at = world.city_at + world.city[st.district[who]]
        self._event(st, episode, who, 0, DESTINATION, at, more(c.more_destination, who))
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
        c, world, rng, n = self.c, self.world, self.rng, len(who)
        st.district[who] = np.searchsorted(world.visits, rng.random(n)).clip(max=len(world.visits) - 1)
        items = self.world.items(st.district[who], self.width)
        date = rng.normal(0, c.price_date, (n, 1)).astype(np.float32)
        listing = c.price_listing * rng.standard_normal(items.shape, np.float32)
        st.log_price[who] = world.log_price[items] + date + listing
        taste = self.sessions.taste[st.row[who]]
        st.worth[who] = world.quality[items]
        for k in range(taste.shape[1]):  # a sum of few products: faster than gathering [n, W, tastes]
            st.worth[who] += taste[:, k : k + 1] * world.taste[:, k][items]
        st.memory[who], st.last[who], st.match[who] = 0, -1, 0
        if late:
            st.sort[who], st.filters[who] = 0, -1

    def _choose_filters(self, st: _State, who: np.ndarray) -> None:
        n, rng = len(who), self.rng
        popular = -0.09 * np.arange(len(FILTERS))
        best = np.argsort(-(popular + rng.gumbel(size=(n, len(FILTERS)))), axis=1)[:, : st.filters.shape[1]]
        keep = np.arange(best.shape[1]) < rng.choice([1, 2, 3, 4], n, p=[0.45, 0.2, 0.2, 0.15])[:, None]
        st.filters[who] = np.where(keep, best, -1)
        items = self.world.items(st.district[who], self.width)
        met = np.zeros((n, self.width), np.float32)
        for k in range(best.shape[1]):  # FILTERS are the first PROPERTIES
            met += self.world.has[items, best[:, k : k + 1]] & keep[:, k : k + 1]
        st.match[who] = met / keep.sum(1, keepdims=True)

    def _relist(self, st: _State, who: np.ndarray) -> None:
        """Order the district for `who` and cut the list; the former list's touches count less."""
        c, rng, world, n = self.c, self.rng, self.world, len(who)
        items = self.world.items(st.district[who], self.width)
        sort = st.sort[who][:, None]
        chance = c.display_noise * rng.standard_normal(items.shape, np.float32)
        score = world.display[items] + chance
        some = np.flatnonzero(sort)
        other = np.stack([-st.log_price[who[some]], world.rating[items[some]], chance[some]])
        score[some] = np.take_along_axis(other, sort[some].reshape(1, -1, 1) - 1, axis=0)[0]
        score += c.filter_pull * st.match[who]
        score[np.arange(self.width) >= world.size[st.district[who]][:, None]] = -np.inf
        st.order[who] = np.argsort(-score, axis=1, kind="stable")[:, :LIST]
        kinds = np.cumsum([c.short_list, c.nearly_full, 1 - c.full_list - c.short_list - c.nearly_full])
        lengths = [rng.integers(1, 11, n), np.full(n, LIST - 1), rng.integers(11, LIST - 1, n), np.full(n, LIST)]
        st.length[who] = np.choose(np.searchsorted(kinds, rng.random(n), side="right"), lengths)
        st.memory[who] *= c.memory_relist

    def _list_value(self, st: _State) -> np.ndarray:
        """Return the part of U common to touches and clicks, float32 ``[n, LIST]``; -inf beyond the end of the list."""
        c = self.c
        seen = np.arange(LIST) < st.length[:, None]
        price = np.where(seen, np.log(_round_price(np.take_along_axis(st.log_price, st.order, 1))), 0)
        count = st.length[:, None]
        centred = np.where(seen, price - price.sum(1, keepdims=True) / count, 0)
        z = np.clip(centred / np.sqrt((centred**2).sum(1, keepdims=True) / count + 1e-4), -2.5, 2.5)
        price_pull = np.where(self._has_changed(st), c.price_after, c.price)
        factor = price_pull * np.asarray(c.price_device)[self.sessions.device[st.row]]
        factor = np.where(st.sort == 1, c.price_sorted, 1) * factor
        value = np.take_along_axis(st.worth + c.filter_match * st.match, st.order, 1)
        value += factor[:, None].astype(np.float32) * z.astype(np.float32)
        value[~seen] = -np.inf
        return value

    def _has_changed(self, st: _State) -> np.ndarray:
        """Mark the sessions after the change of tastes, bool ``[n]``."""
        c = self.c
        if c.change_day is None:
            return np.zeros(len(st.row), bool)
        return self.sessions.start[st.row] >= c.start + c.change_day * 86_400

    def _touch(self, st: _State, episode: int, value: np.ndarray) -> None:
        """Draw and log the touches before the click, and update the memory."""
        c, rng, n, late = self.c, self.rng, len(st.row), int(episode > 0)
        searched = rng.random(n) < c.search_item[late]
        runs = np.minimum(1 + rng.poisson(self.sessions.rate[st.row]), c.max_runs)
        # An episode without a click always has a touch, so that no session is empty.
        touched = (rng.random(n) < c.touched[late]) | (episode >= self.sessions.clickouts[st.row])
        runs = runs * touched + searched
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
        pulls = [*zip(c.position, c.first_place, strict=True), c.position_after]
        which = np.where(self._has_changed(st), 2, final)
        position = np.stack([_position_effect(*pull) for pull in pulls])[which]
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
        self._event(st, episode, rows, LAST_SLOT, CLICKOUT, first + place, filters=True, click=done + rows)
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
    """Draw one place for every entry of ``row`` (sorted) from that row's probabilities, int64."""
    cut = np.cumsum(p, axis=1)
    cut += np.arange(len(p))[:, None]
    last = p.shape[1] - 1 - (p[:, ::-1] > 0).argmax(1)  # rounding must never choose a place of probability 0
    found = np.searchsorted(cut.ravel(), row + rng.random(len(row)), side="right") - row * p.shape[1]
    return np.clip(found, 0, last[row])
