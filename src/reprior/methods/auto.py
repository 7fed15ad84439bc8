"""`method="auto"`: which method, and why, in one sentence.

Transport where the change is Gaussian and the base can express it at every noise level: it is as exact as the base and
needs no training. Rejuvenation otherwise, tempered where one resampling step keeps too low a relative ESS. Rejuvenation
also where transport would have to start at low noise: transport would then approximate the noisy posterior at its start by
a Gaussian, while rejuvenation starts from resampled draws. (`reprior.adapt` itself handles the case q = p.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reprior.diffusion.sampler import LOW_START, Sampler, chunked
from reprior.methods.method import Method, Problem
from reprior.methods.rejuvenate import Rejuvenate
from reprior.methods.transport import Transport, largest_noise, why_not
from reprior.observations import likely_x, usable
from reprior.weights import relative_ess

__all__ = ["Auto", "refusal"]

OBSERVATIONS, DRAWS = 16, 500  # stored observations, and base draws at each: enough for a median that chooses a method
FLAT = 1e-3  # curvature and slope of log r, in standardised units, below which log r counts as constant
ENOUGH = 0.05  # relative ESS: below it q's bounds keep so little of the posterior that redrawing would be too slow


class Auto(Method):
    """The choice between transport and rejuvenation."""

    name = "auto"
    summary = "chooses between transport and rejuvenate, and says why"

    @classmethod
    def build(cls, problem: Problem, settings: None = None) -> Method:
        ess = typical_ess(problem)
        known = "no stored simulations to measure the ESS on"
        if not math.isnan(ess):
            known = f"the relative ESS of the prior-ratio weights is about {ess:.2g}"
        reason = _no_transport(problem, ess)
        if not reason:
            quadratics = problem.change.quadratics or []
            what = "a Gaussian change" if len(quadratics) == 1 else "a mixture of Gaussian changes"
            why = f"{what} that this base expresses exactly, with no training ({known})"
            if all(float(q.L.abs().max() + q.h.abs().max()) < FLAT for q in quadratics):
                why = f"a cut of the prior: what the base draws outside is drawn again ({known})"
            return Transport(problem, fallback=Rejuvenate(problem)).because(why)
        steps = "one resampling step" if ess >= 0.1 else "resampling in tempered steps"
        moves = "denoising moves that are accepted by q/p, whose log has no gradient,"
        if problem.change.differentiable:
            moves = "a guided denoising"
        why = f"{known}: {steps} and {moves} need no training; not transport, as {reason}"
        return Rejuvenate.build(problem).because(why)


def typical_ess(problem: Problem) -> float:
    """The median relative ESS of the prior-ratio weights over observations where q puts them; NaN without simulations."""
    x = typical_x(problem)
    if x is None:
        return math.nan
    generator = torch.Generator().manual_seed(problem.seed)
    denoiser = problem.posterior.condition(x, predict=problem.observed is not None)
    log_w = problem.change.log_w(chunked(denoiser, DRAWS, Sampler(steps=16), generator)).cpu()
    return float(torch.tensor([relative_ess(log_w[:, k]) for k in range(len(x))]).median())


def refusal(problem: Problem) -> str:
    """Why transport refuses at most typical observations; empty if it does not."""
    x, quadratics = typical_x(problem), problem.change.quadratics
    reason = why_not(quadratics, problem.posterior.base.noise, predicted=problem.observed is not None)
    if reason or x is None:
        return reason
    denoiser = problem.posterior.condition(x, predict=problem.observed is not None)
    refused = Transport(problem).refused(denoiser, torch.Generator().manual_seed(problem.seed))
    if len(refused) <= OBSERVATIONS / 2:  # the fallback, rejuvenation, draws at these
        return ""
    return next(iter(refused.values())).split(": ", 1)[1].split(". ", 1)[0]


def typical_x(problem: Problem) -> Tensor | None:
    """Observations where q puts them, with shape (K, m), NaN where they are to be predicted; None without simulations."""
    simulations, observed = problem.posterior.simulations, problem.observed
    if simulations is None:
        return None
    generator = torch.Generator().manual_seed(problem.seed)
    x = likely_x(usable(simulations, observed), problem.change, OBSERVATIONS, generator)
    return x if observed is None else torch.where(observed, x, torch.nan)


def _no_transport(problem: Problem, ess: float) -> str:
    """Why transport is not chosen; empty if it is."""
    quadratics = problem.change.quadratics
    reason = why_not(quadratics, problem.posterior.base.noise, predicted=problem.observed is not None)
    if not reason and ess < ENOUGH and problem.change.cuts:
        reason = "most of the posterior lies outside the bounds of the target prior"
    reason = reason or refusal(problem)
    if reason or quadratics is None or len(quadratics) > 1:
        return reason
    top = largest_noise(quadratics[0])
    if top >= min(problem.posterior.base.s_max, LOW_START):
        return ""
    return f"it could start no higher than at noise {top:.3g} (standardised units), where a resampled pool is the better start"
