"""Features of a store's sales up to the origin for the six weeks that follow: regressions and their errors."""

from __future__ import annotations

import torch

from competitions.rossmann.data import HORIZON
from fastrec.features import feature
from fastrec.segments import Groups

INPUTS = [
    "day", "origin", "Sales", "DayOfWeek", "Promo", "SchoolHoliday", "month_day", "year_day", "closed_since",
    "closed_until", "long_closed_since", "region",
]  # fmt: skip
OUTPUTS = [
    "forecast", "forecast_now", "level", "miss_6w", "miss_2w", "miss_weekday", "miss_promo", "miss_26w", "noise",
    "miss_last_year", "miss_last_year_all", "miss_last_year_region", "usual_12w", "usual_26w", "usual_52w",
]  # fmt: skip
_SLOW, _FAST = 300.0, 45.0  # days after which a day counts half
_OWN = 12.0  # how many days of its own a store needs to be believed half against all stores


@feature(inputs=INPUTS, outputs=OUTPUTS, by="Store", order="day")
def store_history(
    day, origin, sales, weekday, promo, school, month_day, year_day, since, until, works, region, *, groups: Groups
):
    """Compute the features known at the origin of each row.

    ``forecast`` is a ridge regression of the store's log sales on the calendar, by days before the origin alone, where
    older days count less (``forecast_now``: much less) and a store's coefficients are drawn to those of all stores.
    ``miss_*`` are means of what such forecasts have missed in days before the origin, ``usual_*`` the mean log sales
    of the days before it with the same weekday and promotion, less the forecast. What is the same for all stores over a
    whole six weeks (the year, the week, growth since last year) is left out: there are few six weeks to learn it from.
    """
    day, origin = (day / 86_400).long(), (origin / 86_400).long()
    stores, last = int(groups.codes.max()) + 1, int(origin.max())
    blocks = int((last - origin.min()) // HORIZON) + 1
    block = blocks - 1 - (last - origin) // HORIZON
    store = groups.unsort(groups.codes)
    at = store, block, day - origin
    shape = (stores, blocks, HORIZON)
    known = torch.zeros(shape, dtype=torch.bool)
    y = torch.zeros(shape, dtype=torch.float64)
    known[at] = ~sales.isnan()
    y[at] = sales.nan_to_num(1.0).log()
    x = _inputs(weekday, promo, school, month_day, year_day, since, until, works)
    made = torch.zeros((*shape, x.shape[1]), dtype=torch.float64)
    made[at] = x
    slow, level = _forecast(made, y, known, _SLOW)
    fast, _ = _forecast(made, y, known, _FAST)
    history = _Misses(torch.where(known, y - slow, torch.nan), y, known)
    week = torch.zeros(shape, dtype=torch.int64)
    week[at] = weekday.long()
    has_promo = torch.zeros(shape, dtype=torch.int64)
    has_promo[at] = promo.long()
    kind = week * 2 + has_promo
    of_store = torch.zeros(stores, dtype=torch.int64)
    of_store[store] = region.long()
    columns = {
        "forecast": slow,
        "forecast_now": fast - slow,
        "level": level[:, :, None].expand(shape),
        "miss_6w": history.last(42),
        "miss_2w": history.last(14),
        "miss_weekday": history.last(84, kind=week) - history.last(84),
        "miss_promo": history.last(84, kind=has_promo) - history.last(84),
        "miss_26w": history.last(182),
        "noise": history.spread(182),
        "miss_last_year": history.around(364, 10),
        "miss_last_year_all": history.around(364, 3, of=torch.zeros_like(of_store)),
        "miss_last_year_region": history.around(364, 3, of=of_store),
        **{f"usual_{w}w": history.usual(7 * w, kind) - slow for w in (12, 26, 52)},
    }
    return {n: columns[n][at] for n in OUTPUTS}


def _inputs(weekday, promo, school, month_day, year_day, since, until, works) -> torch.Tensor:
    """Return the regression's inputs ``[n, p]``, the constant first."""
    angle = 2 * torch.pi * year_day / 365.25
    days = torch.nn.functional.one_hot(weekday.long() - 1, 7).double()
    december = year_day - 333  # from the 1st
    parts = [
        torch.ones_like(weekday)[:, None],
        days,
        days[:, :5] * promo[:, None],
        torch.stack(
            [
                school,
                (since == 1).double(),
                (until == 1).double(),
                (works == 1).double() + (works == 2).double(),
                (month_day <= 3).double(),
                ((month_day > 3) & (month_day <= 9)).double(),
                (month_day >= 29).double(),
                ((month_day >= 19) & (month_day <= 26)).double(),
                ((december >= 0) & (december < 24)).double(),
                ((december >= 14) & (december < 24)).double(),
                angle.sin(),
                angle.cos(),
                (2 * angle).sin(),
                (2 * angle).cos(),
            ],
            1,
        ),
    ]
    return torch.cat(parts, 1)


def _forecast(x, y, known, half_life: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Fit ridge regressions on the days before each block: predictions ``[stores, blocks, 42]`` and the stores' levels.

    All that they need are sums of products, which are carried from block to block and fade.
    """
    stores, blocks, days, p = x.shape
    weight = 0.5 ** (torch.arange(days - 1, -1, -1, dtype=torch.float64) / half_life)
    fade = 0.5 ** (days / half_life)
    total = x.new_zeros(stores, p, p)
    right = x.new_zeros(stores, p)
    predicted, levels = torch.full_like(y, torch.nan), y.new_full((stores, blocks), torch.nan)
    own = _OWN * torch.eye(p, dtype=torch.float64)
    own[0, 0] = 1e-3
    for b in range(blocks):
        if b:
            w = known[:, b - 1] * weight
            wx = x[:, b - 1] * w[:, :, None]
            total = total * fade + wx.transpose(1, 2) @ x[:, b - 1]
            right = right * fade + (wx * y[:, b - 1, :, None]).sum(1)
        count = total[:, 0, 0]
        some = count > 1e-6
        if not bool(some.any()):
            continue
        level = torch.where(some, right[:, 0] / count.clamp_min(1e-9), 0.0)
        rest = right - level[:, None] * total[:, 0]
        shared = torch.linalg.solve(total.sum(0) + torch.eye(p, dtype=torch.float64), rest.sum(0))
        delta = torch.linalg.solve(total + own, rest - total @ shared)
        made = (x[:, b] @ (shared + delta)[:, :, None])[:, :, 0] + level[:, None]
        predicted[:, b] = torch.where(some[:, None], made, torch.nan)
        levels[:, b] = torch.where(some, level, torch.nan)
    return predicted, levels


class _Misses:
    """Errors of forecasts, by store and day, and their means over days before each block.

    Args:
        miss: float64 ``[stores, blocks, 42]``, NaN where there was no forecast or nothing is known.
        y: log sales.
        known: bool: where there are sales.
    """

    def __init__(self, miss: torch.Tensor, y: torch.Tensor, known: torch.Tensor) -> None:
        self.shape = miss.shape
        self.miss = miss.flatten(1)
        self.y = torch.where(known, y, torch.nan).flatten(1)
        self.starts = torch.arange(self.shape[1]) * HORIZON

    def last(self, days: int, *, kind: torch.Tensor | None = None) -> torch.Tensor:
        """Return the mean miss of the last days before the origin, or of those of the same kind."""
        if kind is None:
            return _mean(self.miss, self.starts - days, self.starts)[:, :, None].expand(self.shape)
        return self._of_kind(self.miss, days, kind)

    def usual(self, days: int, kind: torch.Tensor) -> torch.Tensor:
        """Return the mean log sales of the last days of the same kind before the origin."""
        return self._of_kind(self.y, days, kind)

    def _of_kind(self, values: torch.Tensor, days: int, kind: torch.Tensor) -> torch.Tensor:
        made = torch.full(self.shape, torch.nan, dtype=torch.float64)
        for value in torch.unique(kind).tolist():
            of_kind = torch.where(kind.flatten(1) == value, values, torch.nan)
            mean = _mean(of_kind, self.starts - days, self.starts)
            made = torch.where(kind == value, mean[:, :, None], made)
        return made

    def spread(self, days: int) -> torch.Tensor:
        """Return the root of the mean squared miss of the last days."""
        return _mean(self.miss.square(), self.starts - days, self.starts).sqrt()[:, :, None].expand(self.shape)

    def around(self, ago: int, reach: int, *, of: torch.Tensor | None = None) -> torch.Tensor:
        """Return the mean miss ``ago`` days before each day, give or take ``reach`` days, of the store.

        With ``of`` (int64 ``[stores]``) the mean over days of the mean of all stores of its group.
        """
        miss = self.miss
        if of is not None:
            found = ~miss.isnan()
            total, count = (
                miss.new_zeros(int(of.max()) + 1, miss.shape[1]).index_add(0, of, v)
                for v in (miss.nan_to_num(0.0), found.double())
            )
            miss = torch.where(count > 0, total / count.clamp_min(1), torch.nan)
        day = torch.arange(miss.shape[1])
        made = _mean(miss, day - ago - reach, day - ago + reach + 1)
        return (made if of is None else made[of]).reshape(self.shape)


def _mean(values: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Average known values over days ``low`` up to ``high``: ``[stores, windows]``, NaN of fewer than three."""
    found = ~values.isnan()
    zero = values.new_zeros(len(values), 1)
    total = torch.cat([zero, values.nan_to_num(0.0).cumsum(1)], 1)
    count = torch.cat([zero, found.double().cumsum(1)], 1)
    low, high = low.clamp(0, values.shape[1]), high.clamp(0, values.shape[1])
    many = count[:, high] - count[:, low]
    return torch.where(many >= 3, (total[:, high] - total[:, low]) / many, torch.nan)
