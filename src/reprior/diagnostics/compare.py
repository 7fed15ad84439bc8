"""Checks at one observation that compare adapted samples with something else.

**Reweighted base samples.** Base draws weighted by r follow q(theta | x). Where the weights leave too few of them, both
sides are moved to a law between p and q that each can reach,

    p(theta | x) r^b :    base draws with weights r^b,    adapted draws with weights r^(b - 1),    0 < b <= 1

and compared there; b is the largest that leaves enough base draws. The classifier takes the weights as they are, so
nothing is duplicated.

**Two methods.** Samples of the adapted posterior against those of another cheap method.

**Importance correction.** Weights p(theta | x) r(theta) / g(theta | x) of adapted draws, g the density of the guided
denoiser that drew them: they are even if and only if the guidance does what it should at these draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from reprior_bench import metrics
from reprior.adapted import AdaptedPosterior
from reprior.correction import fix, importance_correction
from reprior.diagnostics.draws import Scene, draw_adapted
from reprior.errors import InputError
from reprior.methods.method import Guidance
from reprior.methods.sir import SIRGuidance, SIRSettings
from reprior.methods.rejuvenate import RejuvenateGuidance, RejuvenateSettings
from reprior.methods.transport import TransportGuidance, quadratics_of, why_not
from reprior.weights import share

__all__ = ["Comparison", "against_reweighted", "agreement", "correction_ess", "weighted_c2st"]

LEAST = 300.0  # effective samples on each side, for a classifier test that can be read
CORRECTION_DRAWS = 150
COMPARED = 2_000  # adapted draws against reweighted base draws
OTHER_DRAWS = 1_000  # of the second method
OTHER_POOL = 2_000
LARGEST_DIM = 12  # beyond, the exact divergence is dear


@dataclass(frozen=True)
class Comparison:
    """A figure, or the reason why there is none.

    Attributes:
        value: the figure; NaN if there is none.
        note: how it was made, or why it was not.
    """

    value: float
    note: str


def weighted_c2st(a: Tensor, log_wa: Tensor, b: Tensor, log_wb: Tensor, seed: int = 1, folds: int = 5) -> float:
    """Classifier two-sample test of two weighted sets: `reprior_bench.metrics.c2st_fast` with weights.

    Both classes weigh the same in all; the accuracy on held-out rows is weighted too.

    Arguments:
        a: samples, with shape (n, d).
        log_wa: their log weights, with shape (n,).
        b: samples, with shape (m, d).
        log_wb: their log weights, with shape (m,).
        seed: seed of the folds.
        folds: the number of folds.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import StratifiedKFold

    data = _levels(torch.cat([a, b]).double().numpy())
    labels = np.repeat([0, 1], [len(a), len(b)])
    weight = torch.cat([torch.softmax(log_wa.double(), 0), torch.softmax(log_wb.double(), 0)]).numpy()
    weight *= len(weight) / 2
    keep = weight > 1e-6
    data, labels, weight = data[keep], labels[keep], weight[keep]
    right, total = np.zeros(2), np.zeros(2)
    for train, test in StratifiedKFold(folds, shuffle=True, random_state=seed).split(data, labels):
        trees = HistGradientBoostingClassifier(
            max_iter=60, max_leaf_nodes=15, early_stopping=cast(Any, False), random_state=seed
        )
        balanced = weight[train].copy()
        for side in (0, 1):
            balanced[labels[train] == side] /= balanced[labels[train] == side].sum() / len(train)
        trees.fit(data[train], labels[train], sample_weight=balanced)
        hit = trees.predict(data[test]) == labels[test]
        for side in (0, 1):
            mine = labels[test] == side
            right[side] += (weight[test] * hit)[mine].sum()
            total[side] += weight[test][mine].sum()
    return float((right / total).mean())


def _levels(data: np.ndarray, levels: int = 128) -> np.ndarray:
    """Each column as the number of its quantile: what trees see, found once instead of in every fit."""
    inner = np.linspace(0, 1, levels + 1)[1:-1]
    columns = [np.searchsorted(np.unique(np.quantile(c, inner)), c) for c in data.T]
    return np.stack(columns, axis=1).astype(np.float64)


def against_reweighted(adapted: AdaptedPosterior, scene: Scene, seed: int) -> Comparison:
    """Adapted samples against reweighted base samples, at q or, where needed, between p and q.

    Arguments:
        adapted: the adapted posterior.
        scene: the samples at x.
        seed: seed of the folds.
    """
    if adapted.method == "sir":
        return Comparison(math.nan, "importance resampling is reweighted base samples")
    theta = scene.adapted[:COMPARED]
    for b in np.linspace(1.0, 0.1, 19).tolist():
        log_wa, log_wb = b * scene.log_r, (b - 1) * scene.log_r_adapted[:COMPARED]
        log_wa = log_wa.masked_fill(scene.log_r == -torch.inf, -torch.inf)
        left, right = share(log_wa) * len(log_wa), share(log_wb) * len(log_wb)
        if right < LEAST and b < 1:
            break
        if left >= LEAST:
            value = weighted_c2st(scene.base, log_wa, theta, log_wb, seed)
            where = "at the target posterior" if b == 1 else f"between base and target (power {b:.2g} of q/p)"
            return Comparison(value, f"Compared {where}, {left:.0f} and {right:.0f} effective samples.")
    return Comparison(math.nan, "the weights leave too few base samples to compare with")


def partners(adapted: AdaptedPosterior, ess: float) -> tuple[list[tuple[str, Guidance]], str]:
    """Other cheap methods for the same change, the most telling first; where there is none, the reason.

    Arguments:
        adapted: the adapted posterior.
        ess: ESS/N of the prior-ratio weights at x.
    """
    change, noise, own = adapted.change, adapted.posterior.base.noise, adapted.guidance
    if change.same:
        return [], "the prior does not change"
    if isinstance(own, RejuvenateGuidance):
        settings = replace(own.settings, pool=min(OTHER_POOL, own.settings.pool), ess=0.3, stages=24)
        smaller = RejuvenateGuidance(change, noise, settings, own.learned)
        found: list[tuple[str, Guidance]] = [("rejuvenate in smaller steps", smaller)]
        if own.below == "anchor":  # the same anchor in smaller steps shares its errors
            moves = RejuvenateGuidance(change, noise, replace(settings, below="metropolis"))
            found.insert(0, ("moves that are accepted by q/p", moves))
        if not why_not(quadratics_of(change), noise):
            found.insert(0, ("transport", TransportGuidance(change, noise)))
        return found, ""
    if change.differentiable:
        return [("rejuvenate", RejuvenateGuidance(change, noise, RejuvenateSettings(pool=OTHER_POOL)))], ""
    if not isinstance(own, SIRGuidance) and ess * 20_000 > 1_000:
        return [("importance resampling", SIRGuidance(change, SIRSettings(pool=20_000)))], ""
    return [], "log q/p has no gradient and its weights are too uneven: no second method is cheap"


def agreement(adapted: AdaptedPosterior, scene: Scene, seed: int) -> Comparison:
    """Adapted samples against those of another method: the first that can make the change.

    Arguments:
        adapted: the adapted posterior.
        scene: the samples at x.
        seed: draws the other method's samples.
    """
    others, why = partners(adapted, share(scene.log_r))
    generator = torch.Generator().manual_seed(seed)
    mine = scene.adapted[:OTHER_DRAWS]
    for name, other in others:
        try:
            theta = draw_adapted(adapted, scene.x, len(mine), adapted.sampler, generator, other)[0][:, 0]
        except InputError as error:
            why = f"the second method ({name}) cannot make this change: {error}"
            continue
        return Comparison(metrics.c2st_fast(theta, mine), f"Compared with {name}.")
    return Comparison(math.nan, why)


def correction_ess(adapted: AdaptedPosterior, scene: Scene, seed: int) -> Comparison:
    """ESS/N of the importance correction (`reprior.correction`), on draws made for it.

    Arguments:
        adapted: the adapted posterior.
        scene: the samples at x.
        seed: draws the samples.
    """
    if adapted.posterior.dim > LARGEST_DIM:
        return Comparison(math.nan, f"densities are dear beyond {LARGEST_DIM} parameters")
    if adapted.method == "none":
        return Comparison(math.nan, "nothing is guided")
    generator = torch.Generator().manual_seed(seed)
    try:
        fixed = fix(adapted, adapted.sampler)
        theta = draw_adapted(fixed, scene.x, CORRECTION_DRAWS, adapted.sampler, generator)[0][:, 0]
    except InputError as error:
        return Comparison(math.nan, str(error).split(";")[0])
    log_w = importance_correction(fixed, theta, scene.x).double()
    log_w = log_w.masked_fill(~(log_w < torch.inf), -torch.inf)  # NaN too
    return Comparison(share(log_w), f"On {len(theta)} adapted samples.")
