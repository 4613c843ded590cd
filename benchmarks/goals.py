"""What a benchmark's figures are to be, and whether they are. A benchmark that misses one ends with exit code 1."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from typing import Any, NamedTuple


class Goal(NamedTuple):
    """A figure and what it is to be."""

    name: str
    value: float
    least: float
    most: float

    @property
    def met(self) -> bool:
        """Whether it is."""
        return self.least <= self.value <= self.most


def at_least(name: str, value: float, least: float) -> Goal:
    """The more the better."""
    return Goal(name, value, least, inf)


def at_most(name: str, value: float, most: float) -> Goal:
    """The less the better."""
    return Goal(name, value, -inf, most)


def goals_table(goals: Sequence[Goal]) -> str:
    """A line each: met or missed, the figure, its bounds."""
    return "\n".join(
        f"{'met' if goal.met else 'MISSED':<8}{goal.name:<72}{goal.value:>12.4g}   {goal.least:g} .. {goal.most:g}"
        for goal in goals
    )


def goals_told(goals: Sequence[Goal]) -> list[dict[str, Any]]:
    """The same for scripts; None: no bound there, or no figure, for which JSON has no number."""
    return [{**{name: _told(one) for name, one in goal._asdict().items()}, "met": goal.met} for goal in goals]


def _told(one: str | float) -> str | float | None:
    return one if isinstance(one, str) or isfinite(one) else None
