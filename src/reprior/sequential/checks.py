"""The checks of one update: quick, from the figures of its `Info`. `reprior.diagnose` of its adapted posterior says more."""

from __future__ import annotations

import math
from typing import Any

from reprior.diagnostics.change import KHat
from reprior.diagnostics.check import Check, Figure, Outcome, judge
from reprior.info import Info

__all__ = ["check_update"]


class UpdateCheck(Check):
    """A check of the `Info` of an update."""

    group = "The update"

    def look(self, case: Any) -> Figure:
        """The figure of an update.

        Arguments:
            case: its `Info`.
        """
        raise NotImplementedError


class Fit(UpdateCheck):
    """The fitted sum of log-densities against the exact one."""

    name = "fit"
    title = "Fitted sum of log-densities"
    meaning = (
        "Relative ESS of the weights between the fitted sum of the base's log-densities and the exact one, at draws of the "
        "posterior. 1: they agree."
    )
    bad = "low"
    caution = 0.8
    stop = 0.3

    def look(self, case: Any) -> Figure:
        agreement = case.figures["agreement"][0]
        return Figure(agreement, "" if agreement > 0 else "It could not be compared with the exact one.")


class Moved(UpdateCheck):
    """How far the Metropolis moves had to go."""

    name = "moved"
    title = "Shift by the Metropolis moves"
    meaning = "How far the moves shifted the mean of the draws, in standard deviations: a long way may not be finished."
    bad = "high"
    caution = 1.0
    stop = math.inf
    worst = "caution"

    def look(self, case: Any) -> Figure:
        if "moved" not in case.figures:
            return Figure(math.nan, "The draws were not moved.")
        return Figure(case.figures["moved"][0])


class Overlap(UpdateCheck):
    """How many base draws agree with the observations before."""

    name = "overlap"
    title = "Base draws that agree with the observations before"
    meaning = "Effective number of base draws at this observation under the carried prior; an error of the base weighs where few agree."
    bad = "low"
    caution = 20.0  # the mean of 20 draws is off by .2 standard deviations
    stop = 2.0

    def look(self, case: Any) -> Figure:
        pool = len(case.log_w)
        return Figure(case.relative_ess[0] * pool, f"Of {pool} draws.")


class MovedOverlap(Overlap):
    """The same for draws that were moved under the exact sum: few to begin with do no harm."""

    caution = 2.0
    stop = 0.0
    worst = "caution"


class HeavyTail(UpdateCheck):
    """The tail of the weights of the carried prior."""

    name = "k_hat"
    title = "Pareto k-hat of the weights of the carried prior"
    meaning = "Heaviness of the tail of the weights. Above 0.7 an average under them cannot be relied on."
    bad = "high"
    caution = KHat.caution
    stop = math.inf
    worst = "caution"

    def look(self, case: Any) -> Figure:
        return Figure(case.k_hat[0])


class Unchecked(UpdateCheck):
    """A carried prior that was learned from samples."""

    name = "learned"
    title = "Carried prior learned from samples"
    meaning = "Each learning adds an error, which the next one takes for knowledge; nothing measures their sum."
    bad = "high"
    caution = 0.0
    stop = math.inf
    worst = "caution"

    def look(self, case: Any) -> Figure:
        return Figure(math.nan, "Nothing checks the errors that add up.", "caution")


def check_update(info: Info, learned: bool) -> tuple[Outcome, ...]:
    """The checks of an update; () where the samples are those of the base as it is.

    Arguments:
        info: the info of the update.
        learned: whether the carried prior was learned from samples.
    """
    checks: list[UpdateCheck] = []
    if "agreement" in info.figures:
        checks = [Fit(), Moved(), *([] if info.log_w is None else [MovedOverlap()])]
    elif info.log_w is not None:
        checks = [Overlap(), HeavyTail(), *([Unchecked()] if learned else [])]
    return tuple(judge(check, check.look(info)) for check in checks)
