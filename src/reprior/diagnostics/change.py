"""Is the change of prior right? The distance of q(theta | x) from p(theta | x), and comparisons with other methods.

**Weights.** Base draws weighted by r = q/p follow q(theta | x). Their relative ESS, their tail and the divergence

    KL(q(theta | x) || p(theta | x)) = E_q[log r] - log E_p[r]

measure how far the target posterior is from the base posterior.

**Against reweighted base samples.** Where the weights leave too few effective base draws, both sets are weighted to a
distribution between p and q that each can reach,

    p(theta | x) r^b :    base draws with weights r^b,    adapted draws with weights r^(b - 1),    0 < b <= 1

and compared there; b is the largest power that leaves enough base draws. The classifier uses the weights, so nothing is
duplicated.

**Agreement.** Samples of the adapted posterior against those of another cheap method (`Method.second_opinions`).

**Importance correction.** Weights p(theta | x) r(theta) / g(theta | x) of adapted draws, with g the density of the guided
denoiser that drew them. They are all equal if the guidance is exact.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch

from reprior.correction import freeze, importance_correction
from reprior.diagnostics.c2st import c2st
from reprior.diagnostics.case import Case
from reprior.diagnostics.check import Check, Figure, median, missing
from reprior.diagnostics.draws import Scene, draw_adapted
from reprior.errors import InputError
from reprior.weights import pareto_k, relative_ess

__all__ = ["ESS", "Agreement", "Correction", "Gap", "KHat", "Reweighted"]

GROUP = "The change of prior"
EFFECTIVE = 300.0  # effective samples on each side: with fewer, the error of a classifier's accuracy is above .03
CORRECTION_DRAWS = 150  # draws, each with two log-densities: enough to tell a relative ESS of .5 from one of .4
COMPARED = 2_000  # adapted draws that are compared with reweighted base draws
OTHER_DRAWS = 1_000  # draws of the second method: the standard error of the accuracy is then .011
POWERS = np.linspace(1.0, 0.1, 19).tolist()  # powers b of r that are tried, in falling order


class ESS(Check):
    """The relative ESS of the prior-ratio weights over base draws at x."""

    name = "ess"
    title = "Relative ESS of the prior-ratio weights"
    meaning = (
        "Effective fraction of the base samples at x under the target posterior. Low: the target posterior lies in the tail "
        "of the base posterior."
    )
    group = GROUP
    bad = "low"
    caution = 2e-3
    stop = 5e-4

    def look(self, case: Case) -> Figure:
        return median([relative_ess(scene.log_r) for scene in case.scenes])


class Gap(Check):
    """KL(q(theta | x) || p(theta | x)) in nats."""

    name = "gap"
    title = "Gap between base and target posterior"
    meaning = "Kullback-Leibler divergence in nats; about exp(gap) base samples are needed to find one of the target."
    group = GROUP
    bad = "high"
    caution = 5.0
    stop = 8.0

    def look(self, case: Case) -> Figure:
        if not all(scene.usable for scene in case.scenes):
            return missing("there are too few adapted samples")
        return median([max(0.0, _divergence(scene)) for scene in case.scenes])


def _divergence(scene: Scene) -> float:
    return float(scene.log_r_adapted.mean() - torch.logsumexp(scene.log_r, 0)) + math.log(len(scene.log_r))


class KHat(Check):
    """The Pareto shape of the prior-ratio weights; judged only if the samples are base draws resampled by them."""

    name = "k_hat"
    title = "Pareto k-hat of the weights"
    meaning = "Heaviness of the tail of the weights. Above 0.7 an average under them cannot be relied on."
    group = GROUP
    bad = "high"
    caution = 0.7
    stop = 1.0

    def look(self, case: Case) -> Figure:
        values = [pareto_k(scene.log_r) for scene in case.scenes]
        if any(math.isnan(value) for value in values):
            return missing("arviz-stats is not installed (it needs Python 3.11)")
        found = median(values)
        if case.adapted.method.reweights:
            return found
        why = "For information: this method does not average under these weights."
        return Figure(found.value, f"{why} {found.note}".rstrip(), outcome="info")


class Correction(Check):
    """The relative ESS of the importance correction (`reprior.correction`), on its own draws."""

    name = "correction"
    title = "Importance correction"
    meaning = (
        "Effective fraction of adapted samples after a reweighting to the exact target with the base's own densities. "
        "1: nothing to correct."
    )
    group = GROUP
    bad = "low"
    caution = 0.5
    stop = 0.1

    def look(self, case: Case) -> Figure:
        largest = case.settings.density_dim
        if case.posterior.dim > largest:
            return missing(f"densities take long beyond {largest} parameters (density_dim of the settings)")
        return self.at_worst(case, lambda scene: self.one(case, scene))

    @staticmethod
    def one(case: Case, scene: Scene) -> Figure:
        """The figure at one observation."""
        adapted, generator = case.adapted, torch.Generator().manual_seed(case.seed)
        denoiser = adapted.posterior.condition(scene.x)
        try:
            frozen = freeze(adapted, adapted.sampler)
            if frozen.method.guide(denoiser, generator) is denoiser:
                return missing("nothing is guided")
            theta = draw_adapted(frozen, scene.x, CORRECTION_DRAWS, adapted.sampler, generator)[0][:, 0]
        except InputError as error:
            return missing(str(error).split(";")[0])
        log_w = importance_correction(frozen, theta, scene.x).double()
        log_w = log_w.masked_fill(~(log_w < torch.inf), -torch.inf)  # NaN too
        return Figure(relative_ess(log_w), f"On {len(theta)} adapted samples.")


class Reweighted(Check):
    """C2ST of adapted samples against reweighted base samples, at q or, where needed, between p and q."""

    name = "reweighted"
    title = "Against reweighted base samples"
    meaning = "Accuracy of a classifier that tells adapted samples from reweighted base samples. 0.5: it cannot."
    group = GROUP
    bad = "high"
    caution = 0.55
    stop = 0.65

    def look(self, case: Case) -> Figure:
        if case.adapted.method.reweights:
            return missing("the adapted samples are themselves reweighted base samples")
        return self.at_worst(case, lambda scene: self.one(case, scene))

    @staticmethod
    def one(case: Case, scene: Scene) -> Figure:
        """The figure at one observation."""
        theta = scene.adapted[:COMPARED]
        for b in POWERS:
            log_wa, log_wb = b * scene.log_r, (b - 1) * scene.log_r_adapted[:COMPARED]
            log_wa = log_wa.masked_fill(scene.log_r == -torch.inf, -torch.inf)
            base, own = relative_ess(log_wa) * len(log_wa), relative_ess(log_wb) * len(log_wb)
            if own < EFFECTIVE and b < 1:
                break
            if base >= EFFECTIVE:
                value = c2st(scene.base, theta, log_wa, log_wb, case.seed)
                where = "at the target posterior" if b == 1 else f"between base and target (power {b:.2g} of q/p)"
                return Figure(value, f"Compared {where}, {base:.0f} and {own:.0f} effective samples.")
        return missing("the weights leave too few base samples to compare with")


class Agreement(Check):
    """C2ST of adapted samples against those of another method: the first second opinion that can make the change."""

    name = "agreement"
    title = "Agreement of two methods"
    meaning = "Accuracy of a classifier that tells the samples of two methods apart. 0.5: it cannot."
    group = GROUP
    bad = "high"
    caution = 0.57
    stop = 0.65
    seed_shift: ClassVar[int] = 11  # with the same seed the other method would start from the same noise as the first

    def look(self, case: Case) -> Figure:
        return self.at_worst(case, lambda scene: self.one(case, scene))

    def one(self, case: Case, scene: Scene) -> Figure:
        """The figure at one observation."""
        adapted, generator = case.adapted, torch.Generator().manual_seed(case.seed + self.seed_shift)
        mine = scene.adapted[:OTHER_DRAWS]
        why = "log q/p has no gradient and its weights are too uneven: no second method is cheap"
        if case.change.same:
            why = "the prior does not change"
        for name, other in adapted.method.second_opinions(relative_ess(scene.log_r)):
            try:
                theta = draw_adapted(adapted, scene.x, len(mine), adapted.sampler, generator, other)[0][:, 0]
            except InputError as error:
                why = f"the second method ({name}) cannot make this change: {error}"
                continue
            return Figure(c2st(theta, mine), f"Compared with {name}.")
        return missing(why)
