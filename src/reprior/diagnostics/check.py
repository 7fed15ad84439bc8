"""One check of an adapted posterior: a figure, its two thresholds, and what it means in plain words.

A check is one class and one line that registers it:

    @register_check
    class Width(Check):
        name, title, meaning = "width", "Width", "Standard deviation of the first parameter."
        group, bad, caution, stop = "Mine", "high", 0.5, 1.0

        def look(self, case: Case) -> Figure:
            return self.at_worst(case, lambda scene: Figure(float(scene.adapted[:, 0].std())))

The library's own checks are registered in `reprior/diagnostics/__init__.py`, in the order of the report. Their thresholds
were set on development observations of the benchmark (docs/verdict.md), never on those of the published rates.
`DiagnoseSettings(thresholds=...)` replaces them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from reprior.errors import InputError

if TYPE_CHECKING:
    from reprior.diagnostics.case import Case
    from reprior.diagnostics.draws import Scene

__all__ = [
    "CHECKS",
    "Check",
    "Figure",
    "Level",
    "Outcome",
    "Thresholds",
    "check_thresholds",
    "judge",
    "median",
    "missing",
    "register_check",
    "short",
]

Level = Literal["pass", "caution", "stop", "info", "skipped"]
Thresholds = Mapping[str, tuple[float, float]]  # (caution, stop) by the name of a check


@dataclass(frozen=True)
class Figure:
    """What a check found.

    Attributes:
        value: the figure; NaN if there is none.
        note: how it was made; if there is no figure, why.
        outcome: an outcome that overrides the thresholds: "info" for a figure that is shown and not judged; "caution" or
            "stop" if it is a bad sign that there is no figure. None: by the thresholds, and "skipped" without a figure.
    """

    value: float
    note: str = ""
    outcome: Literal["caution", "stop", "info"] | None = None


def missing(why: str) -> Figure:
    """No figure, as the check cannot be made, and why."""
    return Figure(math.nan, why)


class Check(ABC):
    """A check.

    Attributes:
        name: its name in the report and in thresholds.
        title: its name in words.
        meaning: what the figure means, in one or two plain sentences.
        group: the part of the report that shows it.
        bad: whether a "high" or a "low" figure is bad.
        caution: where caution begins.
        stop: where trust ends.
        worst: the worst outcome that this check may have: "stop", "caution", or "info", which shows it without judging.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    meaning: ClassVar[str]
    group: ClassVar[str]
    bad: ClassVar[Literal["high", "low"]]
    caution: ClassVar[float]
    stop: ClassVar[float]
    worst: ClassVar[Literal["stop", "caution", "info"]] = "stop"

    @abstractmethod
    def look(self, case: Case) -> Figure:
        """The figure of a case, or NaN with the reason why there is none."""

    def at_worst(self, case: Case, one: Callable[[Scene], Figure]) -> Figure:
        """The worst figure over the observations; if none has a figure, the reason at the first.

        Arguments:
            case: the case.
            one: the figure at one observation; it is called only where enough adapted samples could be drawn.
        """
        found = [one(scene) if scene.usable else missing("there are too few adapted samples") for scene in case.scenes]
        made = [figure for figure in found if not math.isnan(figure.value)]
        pick = max if self.bad == "high" else min
        return pick(made, key=lambda figure: figure.value) if made else found[0]


def median(values: Sequence[float]) -> Figure:
    """The median of a figure over the observations (of an even number, the upper one)."""
    note = "" if len(values) == 1 else f"Median over {len(values)} observations."
    return Figure(sorted(values)[len(values) // 2], note)


@dataclass(frozen=True)
class Outcome:
    """A check with its figure and outcome.

    Attributes:
        name: the name of the check.
        title: its name in words.
        meaning: what the figure means.
        group: the part of the report that shows it.
        bad: whether a "high" or a "low" figure is bad.
        worst: the worst outcome that the check may have.
        value: the figure; NaN if there is none.
        caution: where caution begins.
        stop: where trust ends.
        outcome: "pass", "caution", "stop", "info" (shown, not judged) or "skipped" (not made).
        note: what else there is to say; for a skipped check, why.
    """

    name: str
    title: str
    meaning: str
    group: str
    bad: Literal["high", "low"]
    worst: Literal["stop", "caution", "info"]
    value: float
    caution: float
    stop: float
    outcome: Level
    note: str = ""

    @property
    def threshold(self) -> str:
        """The thresholds in words."""
        sign = ">" if self.bad == "high" else "<"
        if self.outcome == "info":
            return "not judged"
        if self.worst == "caution":
            return f"caution {sign} {short(self.caution)}"
        return f"caution {sign} {short(self.caution)}, stop {sign} {short(self.stop)}"

    @property
    def reason(self) -> str:
        """One sentence that names the figure and the threshold it crossed, or says why there is no figure."""
        if math.isnan(self.value):
            return f"{self.title}: no figure. {self.note[:1].upper()}{self.note[1:]}".rstrip()
        limit = self.stop if self.outcome == "stop" else self.caution
        text = f"{self.title}: {short(self.value)}, {'above' if self.bad == 'high' else 'below'} {short(limit)}."
        return f"{text} {self.note}" if self.note else text

    def to_dict(self) -> dict[str, Any]:
        """The outcome as JSON-ready data."""
        return {
            "name": self.name,
            "title": self.title,
            "group": self.group,
            "value": self.value if math.isfinite(self.value) else None,
            "caution": self.caution,
            "stop": self.stop,
            "outcome": self.outcome,
            "meaning": self.meaning,
            "note": self.note,
        }


def judge(check: Check, figure: Figure, thresholds: Thresholds | None = None) -> Outcome:
    """The outcome of a figure, by the thresholds of its check.

    Arguments:
        check: the check.
        figure: what it found.
        thresholds: thresholds that replace those of the checks.
    """
    caution, stop = (thresholds or {}).get(check.name, (check.caution, check.stop))
    value, sign = figure.value, 1 if check.bad == "high" else -1
    outcome: Level = "pass"
    if figure.outcome is not None:
        outcome = figure.outcome
    elif math.isnan(value):
        outcome = "skipped"
    elif check.worst == "info":
        outcome = "info"
    elif sign * value > sign * stop:
        outcome = check.worst
    elif sign * value > sign * caution:
        outcome = "caution"
    text = (check.name, check.title, check.meaning, check.group, check.bad, check.worst)
    return Outcome(*text, value, caution, stop, outcome, figure.note)


# The registry

CHECKS: list[Check] = []  # in the order of the report
C = TypeVar("C", bound=type[Check])


def register_check(check: C) -> C:
    """Adds a check to every report; also a class decorator.

    Arguments:
        check: a subclass of `Check` with all its attributes.
    """
    if not isinstance(check, type) or not issubclass(check, Check):
        raise InputError(f"register_check takes a subclass of reprior.diagnostics.Check; got {check!r}")
    lacking = [a for a in ("name", "title", "meaning", "group", "bad", "caution", "stop") if not hasattr(check, a)]
    if lacking:
        raise InputError(f"check {check.__name__} has no {', '.join(lacking)}")
    if check.bad not in ("high", "low") or check.worst not in ("stop", "caution", "info"):
        raise InputError(
            f"check {check.name!r}: bad must be 'high' or 'low', and worst 'stop', 'caution' or 'info'; got {check.bad!r}, "
            f"{check.worst!r}"
        )
    _ordered(check, check.caution, check.stop)
    made = check()
    for i, known in enumerate(CHECKS):
        if known.name == check.name:
            if (type(known).__module__, type(known).__qualname__) != (check.__module__, check.__qualname__):
                raise InputError(f"a check {check.name!r} is registered already: {type(known).__qualname__}")
            CHECKS[i] = made  # the same class again, from a reloaded module
            return check
    CHECKS.append(made)
    return check


def check_thresholds(thresholds: Thresholds) -> None:
    """Refuses thresholds of an unknown check, or in the wrong order."""
    known = {check.name: check for check in CHECKS}
    for name, lines in thresholds.items():
        if name not in known:
            raise InputError(f"there is no check {name!r} to set thresholds of; registered: {', '.join(known)}")
        if len(lines) != 2:
            raise InputError(f"thresholds[{name!r}] must be (caution, stop); got {lines!r}")
        _ordered(known[name], *lines)


def _ordered(check: Check | type[Check], caution: float, stop: float) -> None:
    sign = 1 if check.bad == "high" else -1
    if not sign * caution <= sign * stop:
        raise InputError(
            f"threshold {check.name!r} is bad when {check.bad}, so caution must come before stop; got caution {caution}, "
            f"stop {stop}"
        )


def short(value: float) -> str:
    """A figure in few digits."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.2g}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
