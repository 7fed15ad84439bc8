"""Calibration under q with no new simulations.

Stored pairs (theta, x) follow p(theta) p(x | theta). Resampled with weights r = q/p they follow q(theta) p(x | theta),
as calibration under q requires. At each such x samples of the adapted posterior are drawn, and two things must hold:

- SBC: the rank of each true parameter among the draws is uniform. Tested per parameter by Kolmogorov-Smirnov, by the
  mean of the ranks (a shift) and by their spread (a posterior too wide or too narrow, which KS hardly sees);
  Bonferroni over all of them.
- TARP: for a random point, the fraction of draws nearer to it than the truth is uniform too (all parameters together);
  the same three tests.

A pair that the resampling draws m times is no independent evidence m times over. It is used once, with weight m, and every
test uses the effective number n_eff = (sum m)^2 / sum m^2.

References:
    Talts et al. (2018), Validating Bayesian inference algorithms with simulation-based calibration, arXiv 1804.06788.
    Lemos et al. (2023), Sampling-based accuracy testing of posterior estimators for general inference (TARP), arXiv 2302.03026.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from reprior.adapted import AdaptedPosterior
from reprior.diagnostics.check import Check, Figure, missing
from reprior.diagnostics.draws import draw_adapted
from reprior.diffusion.sampler import Sampler
from reprior.errors import InputError
from reprior.weights import relative_ess, systematic

if TYPE_CHECKING:
    from reprior.diagnostics.case import Case

__all__ = ["SBC", "TARP", "Calibration", "Pairs", "calibrate", "coverage", "ranks", "uniformity"]

GROUP = "Calibration under the target prior"
STEPS = 14  # sampler steps: the remaining error is too small to change ranks among a few draws
POOLED = 3  # methods that draw a pool at each observation are slow, and get 1 / POOLED of the pairs


@dataclass(frozen=True)
class Calibration:
    """Calibration figures.

    Attributes:
        effective: the effective number of stored pairs once weighted by r.
        n_eff: the effective number of pairs that were used.
        ranks: rank of each true parameter among its draws, in (0, 1), with shape (n, d).
        tarp: the same for the distance to a random point, with shape (n,).
        weights: how often each pair counts, with shape (n,).
        sbc_p: the smallest of the 3 d p values, times 3 d (at most 1).
        tarp_p: the smallest of the 3 p values, times 3 (at most 1).
        spread: for each parameter, the standard deviation of the ranks over that of a uniform distribution; above 1 the
            posterior is too narrow.
        why_not: why there is no calibration; empty if there is.
        failed: whether that is because the method failed at the stored observations.
    """

    effective: float
    n_eff: float
    ranks: Tensor
    tarp: Tensor
    weights: Tensor
    sbc_p: float
    tarp_p: float
    spread: tuple[float, ...]
    why_not: str = ""
    failed: bool = False


def calibrate(
    adapted: AdaptedPosterior, pairs: int = 300, draws: int = 50, fewest: float = 30.0, seed: int = 0
) -> Calibration:
    """Calibrates an adapted posterior on stored pairs resampled towards q.

    Arguments:
        adapted: the adapted posterior, with its stored simulations.
        pairs: how many pairs are resampled; a third of them for methods that draw a pool at each.
        draws: adapted draws at each.
        fewest: the smallest effective number of pairs; with fewer there is no calibration.
        seed: makes it repeatable.
    """
    if pairs == 0:
        return _none(math.nan, "it was left out by the settings")
    if pairs < 150 or draws < 20:
        raise InputError(f"calibration needs at least 150 pairs and 20 draws; got {pairs} and {draws}")
    simulations = adapted.posterior.simulations
    if simulations is None:
        return _none(0.0, "no stored simulations are attached")
    log_r = adapted.change.log_r(simulations.theta).double()
    if not bool(torch.isfinite(log_r).any()):
        return _none(0.0, "no stored parameter has mass under the target prior")
    effective = relative_ess(log_r) * len(log_r)
    if effective < fewest:
        return _none(effective, f"{effective:.0f} effective pairs are too few to calibrate on")
    generator = torch.Generator().manual_seed(seed)
    light = adapted.method.lighter()
    count = pairs // POOLED if light.pools else pairs
    rows, counts = systematic(log_r, count, generator).unique(return_counts=True)
    theta, x = simulations.theta[rows], simulations.x[rows]
    try:
        samples, _ = draw_adapted(adapted, x, draws, Sampler(steps=STEPS), generator, light)
    except InputError as error:
        return _none(effective, f"the method cannot draw at the stored observations: {error}", failed=True)
    fine = torch.isfinite(samples).all(-1).all(0)
    if not bool(fine.any()):
        return _none(effective, "the method gives draws that are not finite at the stored observations", failed=True)
    samples, theta, weights = samples[:, fine], theta[fine], counts[fine].double()
    u = ranks(samples, theta, generator)
    f = coverage(samples, theta, adapted.posterior.scales.theta.scale, generator)
    worst = min(min(uniformity(column, weights)) for column in u.T)
    return Calibration(
        effective,
        float(weights.sum() ** 2 / weights.square().sum()),
        u,
        f,
        weights,
        min(1.0, 3 * u.shape[1] * worst),
        min(1.0, 3 * min(uniformity(f, weights))),
        tuple(_spread(column, weights) for column in u.T),
    )


def ranks(samples: Tensor, theta: Tensor, generator: torch.Generator) -> Tensor:
    """Where each true parameter lies among its draws, in (0, 1); uniform if they are exchangeable.

    Arguments:
        samples: draws at each x, with shape (draws, n, d).
        theta: the true parameters, with shape (n, d).
        generator: places the truth at random between its two neighbours.
    """
    below = (samples < theta).sum(0).double()
    return (below + torch.rand(below.shape, generator=generator, dtype=torch.float64)) / (len(samples) + 1)


def coverage(samples: Tensor, theta: Tensor, scale: Tensor, generator: torch.Generator) -> Tensor:
    """The TARP statistic: the fraction of draws nearer to a random point than the truth, in (0, 1); shape (n,).

    The point for one pair is the true parameter of another: independent of the pair, and where q has its mass.

    Arguments:
        samples: draws at each x, with shape (draws, n, d).
        theta: the true parameters, with shape (n, d).
        scale: what distances are measured in, with shape (d,).
        generator: shuffles the points.
    """
    n = len(theta)
    order = torch.randperm(n, generator=generator)
    point = torch.empty_like(theta)
    point[order] = theta[order.roll(1)]  # a cycle: no pair is its own point
    near = ((samples - point) / scale).square().sum(-1)
    truth = ((theta - point) / scale).square().sum(-1)
    below = (near < truth).sum(0).double()
    return (below + torch.rand(n, generator=generator, dtype=torch.float64)) / (len(samples) + 1)


def uniformity(u: Tensor, weights: Tensor) -> tuple[float, float, float]:
    """p values of three tests that weighted values are uniform on (0, 1): KS, mean, spread.

    Arguments:
        u: values, with shape (n,).
        weights: multiplicities, with shape (n,).
    """
    values, w = u.double().numpy(), (weights / weights.sum()).double().numpy()
    n_eff = 1 / float((w**2).sum())
    order = np.argsort(values)
    cdf = np.cumsum(w[order])
    before = np.concatenate([[0.0], cdf[:-1]])
    distance = float(max((cdf - values[order]).max(), (values[order] - before).max()))
    ks = float(stats.kstwo.sf(distance, max(1, round(n_eff))))
    mean = (float((w * values).sum()) - 0.5) * math.sqrt(12 * n_eff)
    spread = (float((w * (values - 0.5) ** 2).sum()) - 1 / 12) * math.sqrt(180 * n_eff)
    return ks, 2 * float(stats.norm.sf(abs(mean))), 2 * float(stats.norm.sf(abs(spread)))


def _spread(u: Tensor, weights: Tensor) -> float:
    w = weights / weights.sum()
    return float(torch.sqrt((w * (u - 0.5) ** 2).sum() * 12))


def _none(effective: float, why: str, failed: bool = False) -> Calibration:
    empty = torch.zeros(0)
    return Calibration(effective, 0.0, empty, empty, empty, math.nan, math.nan, (), why, failed)


# The checks


class Pairs(Check):
    """The effective number of stored pairs under q."""

    name = "pairs"
    title = "Stored simulations under the target prior"
    meaning = "Effective number of stored pairs (parameters, data) once weighted towards the target prior."
    group = GROUP
    bad = "low"
    caution = 30.0
    stop = 0.0
    worst = "caution"  # too few pairs leave calibration unknown; they do not make the posterior wrong

    def look(self, case: Case) -> Figure:
        made = case.calibration
        if math.isnan(made.effective):
            return missing(made.why_not)
        note = f"Not calibrated: {made.why_not}." if made.why_not and not made.failed else ""
        return Figure(made.effective, note)


def _no_figure(made: Calibration) -> Figure:
    """The figure of SBC and TARP without a calibration: caution if the method failed at stored observations."""
    return Figure(math.nan, f"{made.why_not}.", outcome="caution") if made.failed else missing(made.why_not)


class SBC(Check):
    """The p value of the rank tests, corrected for their number."""

    name = "sbc"
    title = "Calibration: ranks (SBC)"
    meaning = (
        "True parameters must rank uniformly among adapted samples. p value of the worst parameter, corrected for the "
        "number of tests."
    )
    group = GROUP
    bad = "low"
    caution = 0.003
    stop = 1e-5

    def look(self, case: Case) -> Figure:
        made = case.calibration
        if made.why_not:
            return _no_figure(made)
        spread = max(made.spread, key=lambda v: abs(math.log(max(v, 1e-3))))
        # Name the width as the cause only if the ranks are spread by 5 % too much or too little.
        uneven = made.sbc_p < case.threshold(self)[0] and abs(spread - 1) > 0.05
        note = f"The adapted posterior looks too {'narrow' if spread > 1 else 'wide'}." if uneven else ""
        return Figure(made.sbc_p, note)


class TARP(Check):
    """The p value of the coverage tests, corrected for their number."""

    name = "tarp"
    title = "Calibration: coverage (TARP)"
    meaning = (
        "A region with a given fraction of the posterior must contain the true parameters in that fraction of cases, all "
        "parameters together. p value."
    )
    group = GROUP
    bad = "low"
    caution = 0.003
    stop = 1e-5

    def look(self, case: Case) -> Figure:
        made = case.calibration
        return _no_figure(made) if made.why_not else Figure(made.tarp_p)
