"""Simulated files in the form of the census's: persons with a school, a job, a family, and money.

**World.** A person has an age, a sex and a degree that takes years to get. From 15 to 75 most work: the degree shifts
which of ``OCCUPATIONS`` jobs it is, the job shifts the industry. Who works has weeks in the year, perhaps an hourly
wage, and with age and degree more often gains, losses and dividends. Those born abroad, with their parents, and those
who moved are drawn by chance, and so are columns that say nothing.

**Law.** The log-odds of an income above 50,000 are ``BASE`` plus a worth of the degree, of the job, of the degree in
the job's major kind (drawn once for every seed), of age (a parabola with its top at 48), of sex, of the weeks worked,
and of gains and dividends by their logarithm. Who is under 16 is never rich.

**Files.** ``train.parquet`` and ``test.parquet``, four to one at random, both with the target, as the real ones have
it, and with ``unknown``, a weight that has nothing to do with it. One seed gives the same files.

Run ``fastrec simulate competitions/census --sessions 20000 --out DIR``: sessions are persons here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fastrec._core.atomic import atomic_folder
from fastrec.errors import DataError
from fastrec.metrics import auc

FILES = ("train.parquet", "test.parquet")
OCCUPATIONS, INDUSTRIES, STATES, COUNTRIES = 46, 51, 50, 42
KIN = 6  # so many occupations are of one major kind
BASE, TOP_AGE = -5.3, 48
DEGREES = [  # name, the age at which one has it, how common it is, what it is worth
    ("Children", 0, 1.0, 0.0),
    ("7th and 8th grade", 14, 0.6, -1.0),
    ("11th grade", 16, 0.8, -0.6),
    ("High school graduate", 18, 3.2, 0.0),
    ("Some college but no degree", 19, 1.8, 0.3),
    ("Associates degree-academic program", 21, 0.5, 0.6),
    ("Bachelors degree(BA AB BS)", 22, 1.3, 1.6),
    ("Masters degree(MA MS MEng MEd MSW MBA)", 25, 0.45, 2.1),
    ("Prof school degree (MD DDS DVM LLB JD)", 27, 0.12, 3.0),
    ("Doctorate degree(PhD EdD)", 28, 0.08, 2.9),
]
CLASSES = [
    "Private", "Private", "Private", "Private", "Local government", "State government",
    "Self-employed-not incorporated", "Self-employed-incorporated", "Federal government",
]  # fmt: skip
NOT = "Not in universe"


@dataclass(frozen=True)
class Simulated:
    """A summary of the simulation; ``oracle_auc`` is the AUC of the true probabilities on the test rows."""

    out: Path
    train: int
    test: int
    share: float
    oracle_auc: float


def simulate(
    rows: int, out: str | Path, *, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> Simulated:
    """Write the files; earlier ones at ``out`` are replaced in one step.

    Args:
        rows: how many persons, at least 200; a fifth of them is the test.
        out: the folder to make.
        seed: of all random numbers.
        progress: called with the persons done and their number.

    Raises:
        DataError: ``rows`` is below 200, or ``out`` holds other files.
        WriteError: the file system refused.
    """
    out = Path(out)
    if rows < 200:
        raise DataError(f"{rows} persons are too few", remedy="Simulate 200 or more")
    other = sorted(p.name for p in out.iterdir() if p.name not in FILES) if out.is_dir() else []
    if other or out.is_file():
        raise DataError("holds files of something else", file=out, remedy="Name an empty or a new folder")
    rng = np.random.default_rng(seed)
    columns, p = _persons(rows, rng)
    rich = rng.random(rows) < p
    table = pa.table({**columns, "income_50k": np.where(rich, "' 50000+.'", "' - 50000.'")})
    test = rng.permutation(rows) < rows // 5
    with atomic_folder(out) as folder:
        for name, part in zip(FILES, (~test, test), strict=True):
            pq.write_table(table.filter(pa.array(part)), folder / name)
    if progress is not None:
        progress(rows, rows)
    best = auc(torch.from_numpy(p[test]), torch.from_numpy(rich[test].astype(np.float64)))
    return Simulated(out, int((~test).sum()), int(test.sum()), float(rich.mean()), float(best))


def _persons(n: int, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Draw the columns, in the files' order, and the true probabilities ``[n]``."""
    age = np.minimum(rng.gamma(2.2, 16.0, n), 90).astype(np.int64)
    man = rng.random(n) < 0.48
    degree = _degrees(age, rng)
    works = (age >= 16) & (rng.random(n) < np.where(age < 62, 0.8, 0.2))
    job = np.where(works, _jobs(degree, rng), 0)
    industry = np.where(works, 1 + (job + rng.geometric(0.3, n)) % INDUSTRIES, 0)
    weeks = np.where(works, np.where(rng.random(n) < 0.72, 52, rng.integers(1, 53, n)), 0)
    own = rng.choice(len(CLASSES), n)
    wealth = np.exp(rng.normal(0, 1, n) + 0.25 * degree + np.minimum(age, 60) / 30)
    gains = _amounts(wealth, 0.05, 700, rng, adult=age > 20)
    losses = _amounts(wealth, 0.02, 300, rng, adult=age > 20)
    dividends = _amounts(wealth, 0.12, 100, rng, adult=age > 20)
    together = rng.normal(0, 1.2, (len(DEGREES), OCCUPATIONS // KIN + 1))
    worth = np.array([d[3] for d in DEGREES])
    odds = BASE + worth[degree] + together[degree, job // KIN] + np.linspace(1.5, -1.5, OCCUPATIONS + 1)[job]
    odds += 1.1 * man - ((age - TOP_AGE) / 16) ** 2 + 0.045 * weeks + 0.25 * np.log1p(gains / 500)
    odds += 0.2 * np.log1p(dividends / 100) + 0.3 * (CLASSES.index("Self-employed-incorporated") == own) * works
    p = np.where(age < 16, 0.0, 1 / (1 + np.exp(-odds)))

    moved, abroad, married = rng.random(n) < 0.16, rng.random(n) < 0.1, (age > 21) & (rng.random(n) < 0.62)
    child, union = age < 18, works & (rng.random(n) < 0.09)
    known = rng.random(n) < 0.5  # half of the rows have no answer about moving
    born = np.where(abroad, rng.integers(1, COUNTRIES, n), 0)
    parents = np.where(rng.random(n) < 0.9, born, rng.integers(0, COUNTRIES, n))
    columns = {
        "age": age,
        "class_worker": _text(np.where(works, np.array(CLASSES)[own], NOT)),
        "det_ind_code": industry,
        "det_occ_code": job,
        "education": _text(np.array([d[0] for d in DEGREES])[degree]),
        "wage_per_hour": np.where(union | (works & (rng.random(n) < 0.06)), rng.integers(400, 2500, n), 0),
        "hs_college": _text(np.where((age > 15) & (age < 23) & (rng.random(n) < 0.6), "High school", NOT)),
        "marital_stat": _text(np.where(married, "Married-civilian spouse present", "Never married")),
        "major_ind_code": _text(np.char.add("Industry ", (industry // 4).astype(str))),
        "major_occ_code": _text(np.char.add("Occupation ", (job // KIN).astype(str))),
        "race": _text(rng.choice(["White", "Black", "Other"], n, p=[0.84, 0.1, 0.06])),
        "hisp_origin": _text(rng.choice(["All other", "Mexican-American", "Cuban"], n, p=[0.9, 0.08, 0.02])),
        "sex": _text(np.where(man, "Male", "Female")),
        "union_member": _text(np.where(union, "Yes", np.where(works, "No", NOT))),
        "unemp_reason": _text(np.where(works | child | (rng.random(n) < 0.9), NOT, "Other job loser")),
        "full_or_part_emp": _text(np.where(works, "Full-time schedules", "Not in labor force")),
        "capital_gains": gains,
        "capital_losses": losses,
        "stock_dividends": dividends,
        "tax_filer_stat": _text(np.where(works, np.where(married, "Joint both under 65", "Single"), "Nonfiler")),
        "region_prev_res": _text(np.where(moved, rng.choice(["South", "West"], n), NOT)),
        "state_prev_res": _text(np.where(moved, np.char.add("State ", rng.integers(0, STATES, n).astype(str)), NOT)),
        "det_hh_fam_stat": _text(np.where(child, "Child <18 never marr not in subfamily", "Householder")),
        "det_hh_summ": _text(np.where(child, "Child under 18 never married", "Householder")),
        "unknown": np.round(rng.lognormal(7.3, 0.6, n), 2),
        "mig_chg_msa": _text(np.where(moved, "MSA to MSA", "Nonmover"), known),
        "mig_chg_reg": _text(np.where(moved, "Same county", "Nonmover"), known),
        "mig_move_reg": _text(np.where(moved, "Same county", "Nonmover"), known),
        "mig_same": _text(np.where(known, np.where(moved, "No", "Yes"), "Not in universe under 1 year old")),
        "mig_prev_sunbelt": _text(np.where(moved, rng.choice(["Yes", "No"], n), NOT), known),
        "num_emp": np.where(works, rng.integers(1, 7, n), 0),
        "fam_under_18": _text(np.where(child, "Both parents present", NOT)),
        "country_father": _text(np.char.add("Country ", parents.astype(str)), rng.random(n) < 0.97),
        "country_mother": _text(np.char.add("Country ", parents.astype(str)), rng.random(n) < 0.97),
        "country_self": _text(np.char.add("Country ", born.astype(str)), rng.random(n) < 0.98),
        "citizenship": _text(np.where(abroad, "Foreign born- Not a citizen of U S", "Native")),
        "own_or_self": np.where(rng.random(n) < 0.9, 0, rng.integers(1, 3, n)),
        "vet_question": _text(np.where(rng.random(n) < 0.99, NOT, "No")),
        "vet_benefits": np.where(child, 0, np.where(rng.random(n) < 0.99, 2, 1)),
        "weeks_worked": weeks,
        "year": rng.integers(94, 96, n),
    }
    return columns, p


def _text(values: np.ndarray, known: np.ndarray | None = None) -> pa.Array:
    """Format text as the publisher has it, in quotation marks after a space; missing where it is not known."""
    spelled = np.char.add(np.char.add("' ", values), "'")
    return pa.array(spelled, pa.string(), mask=None if known is None else ~known)


def _degrees(age: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw the number of each person's degree among those that the age allows, by how common it is."""
    since, common = (np.array([d[i] for d in DEGREES]) for i in (1, 2))
    share = common * (since <= age[:, None])
    share[age >= 15, 0] = 0
    total = np.cumsum(share, 1)
    return (total < rng.random(len(age))[:, None] * total[:, -1:]).sum(1)


def _jobs(degree: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw the number of a job, from 1: the higher the degree, the lower it tends to be."""
    place = OCCUPATIONS * rng.beta(1.2 + 0.25 * (len(DEGREES) - degree), 1.2 + 0.25 * degree)
    return 1 + np.minimum(place.astype(np.int64), OCCUPATIONS - 1)


def _amounts(wealth: np.ndarray, rate: float, size: int, rng: np.random.Generator, *, adult: np.ndarray) -> np.ndarray:
    """Draw amounts of money that few have; large ones recur, as sums in tax forms do."""
    has = adult & (rng.random(len(wealth)) < rate * np.minimum(wealth / 4, 4))
    amount = size * wealth
    amount = np.where(amount > 2000, np.round(amount / 1024) * 1024, np.round(amount))
    return np.where(has, np.clip(amount, 1, 99_999), 0).astype(np.int64)
