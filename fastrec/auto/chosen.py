"""``Chosen``: which features a recipe gets, and what each was found to be worth."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastrec.features.base import Feature


@dataclass
class Family:
    """Features of one idea.

    Args:
        name: what they are, in plain words.
        features: the generators.
        gain: by how much the trial's score got better; None: they were not tried, their columns ask for them.
        error: its standard error.
        kept: whether they are in the recipe.
    """

    name: str
    features: list[Feature]
    gain: float | None = None
    error: float = 0.0
    kept: bool = True


@dataclass
class Chosen:
    """The features of a recipe.

    Args:
        families: all that was thought of.
        metric: what gains are measured in.
        rows: how many rows a trial is made on.
        hurried: the trials' models had too little time to learn all they could.
        trees: the size of trees that learned most, a name of ``SIZES``; empty: sizes were not tried.
        trees_why: what the trial said.
    """

    families: list[Family] = field(default_factory=list)
    metric: str = ""
    rows: int = 0
    hurried: bool = False
    trees: str = ""
    trees_why: str = ""

    @property
    def features(self) -> list[Feature]:
        """Those in the recipe."""
        return [f for family in self.families if family.kept for f in family.features]
