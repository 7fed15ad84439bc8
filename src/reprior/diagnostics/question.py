"""Is the question covered by the simulations? Can samples be drawn, does p's support contain q, is x like the stored x?"""

from __future__ import annotations

import math

from reprior.diagnostics.case import Case
from reprior.diagnostics.check import Check, Figure, missing
from reprior.distance import x_distance

__all__ = ["Distance", "Sampling", "Support"]

GROUP = "The question"


class Sampling(Check):
    """The fraction of adapted draws that are finite."""

    name = "sampling"
    title = "Draws"
    meaning = "Fraction of adapted samples that are finite; 0 if none can be drawn inside the supports."
    group = GROUP
    bad = "low"
    caution = 1.0
    stop = 0.99

    def look(self, case: Case) -> Figure:
        worst = min(case.scenes, key=lambda scene: scene.finite)
        return Figure(worst.finite, worst.failed)


class Support(Check):
    """The fraction of q outside the support of p."""

    name = "support"
    title = "Target prior outside the prior"
    meaning = (
        "Fraction of the target prior where the training prior has no mass. Nothing was simulated there, so it is left "
        "out."
    )
    group = GROUP
    bad = "high"
    caution = 0.001
    stop = 0.2

    def look(self, case: Case) -> Figure:
        if math.isnan(case.change.outside):
            return missing("the target prior is known by its log-density only")
        return Figure(case.change.outside)


class Distance(Check):
    """How far x is from the stored x (`reprior.distance`)."""

    name = "distance"
    title = "Observation far from the simulations"
    meaning = "Distance of x to its nearest stored simulations; for 99 in 100 simulations it is below 1."
    group = GROUP
    bad = "high"
    caution = 1.0
    stop = 3.0

    def look(self, case: Case) -> Figure:
        if case.simulations is None:
            return missing("no stored simulations are attached")
        scale = case.posterior.scales.x
        far = max(x_distance(case.simulations, scale, scene.x, case.seed) for scene in case.scenes)
        if math.isnan(far):
            few = f"{len(case.simulations)} stored simulations are too few to measure a distance"
            return Figure(far, few, outcome="stop")
        return Figure(far)
