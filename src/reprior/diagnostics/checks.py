"""One check of an adapted posterior: a figure, its two thresholds, and what it means in plain words.

A check passes, calls for caution, or stops; or it is skipped, with the reason. Every threshold is in `Thresholds`, so
that a report can show it beside the figure. The defaults were set on development observations of the benchmark
(`reprior_bench.verdicts`), never on those that the published rates are counted on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from reprior.errors import InputError

__all__ = ["GROUPS", "MEANINGS", "Check", "Thresholds", "check", "skipped"]

OUTCOMES = ("pass", "caution", "stop")


@dataclass(frozen=True)
class Thresholds:
    """Where each check calls for caution, and where it stops; (caution, stop).

    Attributes:
        support: the share of q outside the support of p; bad when high.
        distance: the distance of x to its stored neighbours, in units of what 99 % of the stored x have; bad when high.
        ess: ESS/N of the prior-ratio weights; bad when low.
        gap: KL(q(theta | x) || p(theta | x)) in nats; bad when high.
        k_hat: the Pareto shape of those weights; bad when high; only judged where samples are resampled.
        pairs: the effective number of stored pairs under q; bad when low; too few alone never stops.
        sbc: the p value of the rank tests, corrected for their number; bad when low.
        tarp: the p value of the coverage test; bad when low.
        reweighted: classifier accuracy, adapted against reweighted base samples; bad when high.
        agreement: classifier accuracy between two methods; bad when high.
        correction: ESS/N of the importance correction; bad when low.
        behind: stored simulations in each of 3^d cells over the base posterior at x; bad when low.
        leftover: the shift that the base misses at x, in standard deviations of the adapted posterior; bad when high.
        sampling: the share of adapted draws that is finite (none where the supports cannot be reached); bad when low.
    """

    support: tuple[float, float] = (0.001, 0.2)
    distance: tuple[float, float] = (1.0, 3.0)
    ess: tuple[float, float] = (2e-3, 5e-4)
    gap: tuple[float, float] = (5.0, 8.0)
    k_hat: tuple[float, float] = (0.7, 1.0)
    pairs: tuple[float, float] = (30.0, 0.0)
    sbc: tuple[float, float] = (0.003, 1e-5)
    tarp: tuple[float, float] = (0.003, 1e-5)
    reweighted: tuple[float, float] = (0.55, 0.65)
    agreement: tuple[float, float] = (0.57, 0.65)
    correction: tuple[float, float] = (0.5, 0.1)
    behind: tuple[float, float] = (6.0, 1.0)
    leftover: tuple[float, float] = (0.5, 1.0)
    sampling: tuple[float, float] = (1.0, 0.99)

    def __post_init__(self) -> None:
        for field in fields(self):
            caution, stop = getattr(self, field.name)
            high = field.name in HIGH
            if (caution > stop) if high else (caution < stop):
                raise InputError(
                    f"threshold {field.name!r} is bad when {'high' if high else 'low'}, so caution must come before "
                    f"stop; got caution {caution}, stop {stop}"
                )


HIGH = ("support", "distance", "gap", "k_hat", "reweighted", "agreement", "leftover")

GROUPS: dict[str, tuple[str, ...]] = {
    "The question": ("sampling", "support", "distance"),
    "The base posterior": ("behind", "leftover"),
    "The change of prior": ("ess", "gap", "k_hat", "correction", "reweighted", "agreement"),
    "Calibration under the target prior": ("pairs", "sbc", "tarp"),
}
# name: (title, what the figure means)
MEANINGS: dict[str, tuple[str, str]] = {
    "support": (
        "Target prior outside the prior",
        "Share of the target prior where the training prior has no mass. Nothing was simulated there, so it is left out.",
    ),
    "distance": (
        "Observation far from the simulations",
        "Distance of x to its nearest stored simulations; 1 is what 99 in 100 simulations stay under.",
    ),
    "ess": (
        "ESS/N of the prior-ratio weights",
        "Share of base samples at x that carry the target posterior. Low: the answer lies in the tail of what was learned.",
    ),
    "gap": (
        "Gap between base and target posterior",
        "Kullback-Leibler divergence in nats; about exp(gap) base samples are needed to find one of the target.",
    ),
    "k_hat": (
        "Pareto k-hat of the weights",
        "Heaviness of the tail of the weights. Above 0.7 an average under them cannot be relied on.",
    ),
    "pairs": (
        "Stored simulations under the target prior",
        "Effective number of stored pairs (parameters, data) once weighted towards the target prior.",
    ),
    "sbc": (
        "Calibration: ranks (SBC)",
        "True parameters must rank uniformly among adapted samples. p value of the worst parameter, corrected for the "
        "number of tests.",
    ),
    "tarp": (
        "Calibration: coverage (TARP)",
        "Regions said to hold a share of the posterior must hold the truth that often, all parameters together. p value.",
    ),
    "reweighted": (
        "Against reweighted base samples",
        "Accuracy of a classifier that tells adapted samples from reweighted base samples. 0.5: it cannot.",
    ),
    "agreement": (
        "Agreement of two methods",
        "Accuracy of a classifier that tells the samples of two methods apart. 0.5: it cannot.",
    ),
    "correction": (
        "Importance correction",
        "Share of adapted samples that survives a reweighting to the exact target with the base's own densities. "
        "1: nothing to correct.",
    ),
    "behind": (
        "Simulations behind the base posterior",
        "Stored simulations that lie where the base posterior is, beyond what a linear fit explains, in each cell of a "
        "grid of three cells a side. Few: it is narrower than they can resolve.",
    ),
    "leftover": (
        "Information the base left in the data",
        "How far a plain regression on the stored simulations would still move the posterior at x, in its standard "
        "deviations.",
    ),
    "sampling": (
        "Draws",
        "Share of adapted samples that are finite; 0 where none can be had inside the supports.",
    ),
}


@dataclass(frozen=True)
class Check:
    """The outcome of one check.

    Attributes:
        name: the key of `MEANINGS` and of `Thresholds`.
        value: the figure; NaN if skipped.
        caution: where caution begins.
        stop: where trust ends.
        outcome: "pass", "caution", "stop", "info" (shown, not judged) or "skipped" (not made).
        note: what else there is to say; for a skipped check, why.
    """

    name: str
    value: float
    caution: float
    stop: float
    outcome: str
    note: str = ""

    @property
    def title(self) -> str:
        """The check in words."""
        return MEANINGS[self.name][0]

    @property
    def meaning(self) -> str:
        """What the figure means."""
        return MEANINGS[self.name][1]

    @property
    def threshold(self) -> str:
        """The thresholds in words."""
        sign = ">" if self.name in HIGH else "<"
        if self.outcome == "info":
            return "not judged"
        if self.name == "pairs":
            return f"caution {sign} {short(self.caution)}"
        return f"caution {sign} {short(self.caution)}, stop {sign} {short(self.stop)}"

    @property
    def reason(self) -> str:
        """One sentence that names the figure and the threshold it crossed, or says why there is no figure."""
        if math.isnan(self.value):
            return f"{self.title}: no figure. {self.note[:1].upper()}{self.note[1:]}".rstrip()
        limit = self.stop if self.outcome == "stop" else self.caution
        side = "above" if self.name in HIGH else "below"
        text = f"{self.title}: {short(self.value)}, {side} {short(limit)}."
        return f"{text} {self.note}" if self.note else text

    def to_dict(self) -> dict[str, Any]:
        """The check as JSON-ready data."""
        finite = self.value if math.isfinite(self.value) else None
        return {
            "name": self.name,
            "title": self.title,
            "value": finite,
            "caution": self.caution,
            "stop": self.stop,
            "outcome": self.outcome,
            "meaning": self.meaning,
            "note": self.note,
        }


def check(name: str, value: float, thresholds: Thresholds, note: str = "", most: str = "stop") -> Check:
    """Judges a figure.

    Arguments:
        name: which check.
        value: the figure.
        thresholds: where to draw the lines.
        note: what else there is to say.
        most: the worst outcome that this figure may have alone: "stop" or "caution"; "info" shows it without judging.
    """
    caution, stop = getattr(thresholds, name)
    if most == "info":
        return Check(name, value, caution, stop, "info", note)
    sign = 1 if name in HIGH else -1
    outcome = "pass"
    if math.isnan(value) or sign * value > sign * stop:
        outcome = "stop"
    elif sign * value > sign * caution:
        outcome = "caution"
    outcome = OUTCOMES[min(OUTCOMES.index(outcome), OUTCOMES.index(most))]
    return Check(name, value, caution, stop, outcome, note)


def skipped(name: str, why: str, thresholds: Thresholds) -> Check:
    """A check that was not made, and why."""
    caution, stop = getattr(thresholds, name)
    return Check(name, math.nan, caution, stop, "skipped", why)


def short(value: float) -> str:
    """A figure in few digits."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.2g}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
