"""`method="auto"`: which method, and why, in one sentence.

Transport where the change is Gaussian and the base can express it from noise to data (as exact as the base, and free);
rejuvenation otherwise, tempered where one resampling step keeps too little weight. So too where transport must start at
low noise: a Gaussian would have to stand in for the noisy posterior there, and rejuvenation starts from a resampled pool
instead, with the same transport below. (A flat ratio, where there is nothing to do, is seen before: `reprior.adapt`.)
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from reprior.change import PriorChange
from reprior.diffusion.sampler import LOW_START, Sampler, chunked
from reprior.quadratic import Quadratic
from reprior.methods.transport import Transported, TransportGuidance, largest_noise, quadratics_of, why_not
from reprior.posterior import Posterior
from reprior.methods.learned.pool import likely_x, usable
from reprior.simulations import Simulations
from reprior.weights import share

__all__ = ["choose", "left_by_transport", "transport_refused"]

OBSERVATIONS = 16
DRAWS = 500
FLAT = 1e-3  # curvature and slope of log r, in standardised units, that are none
ENOUGH = 0.05  # ESS/N below which a cut leaves too little to draw again what falls outside


def choose(posterior: Posterior, change: PriorChange, seed: int, observed: Tensor | None = None) -> tuple[str, str]:
    """The method and the reason.

    Arguments:
        posterior: the base posterior.
        change: the change of prior.
        seed: draws the observations and the pools that are looked at.
        observed: which entries of x are observed, with shape (m,); the rest is predicted. All if None.
    """
    ess, told = look(posterior, change, seed, observed)
    quadratics = quadratics_of(change)
    reason = why_not(quadratics, posterior.base.noise, predicted=observed is not None)
    if not reason and ess < ENOUGH and change.cuts(seed):
        reason = "most of the posterior lies outside the bounds of the target prior"
    if not reason:
        reason = _refusal(posterior, change, seed, observed) or _low_start(posterior, quadratics)
        if not reason:
            what = "a Gaussian change" if quadratics and len(quadratics) == 1 else "a mixture of Gaussian changes"
            if quadratics and all(float(q.L.abs().max() + q.h.abs().max()) < FLAT for q in quadratics):
                return "transport", f"a cut of the prior: what the base draws outside is drawn again ({told})"
            return "transport", f"{what} that this base expresses exactly, with no training ({told})"
    steps = "one resampling step" if ess >= 0.1 else "resampling in tempered steps"
    moves = (
        "a guided denoising"
        if change.differentiable
        else "denoising moves that are accepted by q/p, whose log has no gradient,"
    )
    return "rejuvenate", f"{told}: {steps} and {moves} need no training; not transport, as {reason}"


def look(posterior: Posterior, change: PriorChange, seed: int, observed: Tensor | None = None) -> tuple[float, str]:
    """The median ESS/N of the prior-ratio weights over some observations where q puts them, and a phrase that says it."""
    if posterior.simulations is None:
        return float("nan"), "no stored simulations to measure the ESS on"
    generator = torch.Generator().manual_seed(seed)
    x = _typical(posterior.simulations, change, generator, observed)
    denoiser = posterior.condition(x, predict=observed is not None)
    log_w = change.log_w(chunked(denoiser, DRAWS, Sampler(steps=16), generator)).cpu()
    ess = float(torch.tensor([share(log_w[:, k]) for k in range(len(x))]).median())
    return ess, f"ESS/N of the prior-ratio weights is about {ess:.2g}"


def transport_refused(posterior: Posterior, change: PriorChange, seed: int, observed: Tensor | None = None) -> str:
    """Why one transport cannot make the whole change at typical observations; empty if it can.

    Arguments:
        posterior: the base posterior.
        change: the change of prior.
        seed: draws the observations.
        observed: which entries of x are observed, with shape (m,); the rest is predicted. All if None.
    """
    quadratics = quadratics_of(change)
    if quadratics is not None and len(quadratics) > 1:
        return "a mixture is drawn component by component"
    return why_not(quadratics, posterior.base.noise, predicted=observed is not None) or _refusal(
        posterior, change, seed, observed
    )


def left_by_transport(posterior: Posterior, change: PriorChange, part: Quadratic, seed: int) -> float:
    """ESS/N of what is left of the weights once transport has made a part of the change; 1 where nothing is.

    The median over typical observations; 0 where the transported noise does not exist all the way up.
    """
    if posterior.simulations is None or largest_noise(part) < posterior.base.s_max:
        return 0.0
    generator = torch.Generator().manual_seed(seed)
    x = likely_x(posterior.simulations, change, OBSERVATIONS, generator)
    draws = chunked(Transported(posterior.condition(x), part), DRAWS, Sampler(steps=16), generator)
    log_w = (change.log_w(draws) - part(draws)).cpu()
    return float(torch.tensor([share(log_w[:, k]) for k in range(len(x))]).median())


def _refusal(posterior: Posterior, change: PriorChange, seed: int, observed: Tensor | None = None) -> str:
    """Why transport refuses at most typical observations; empty if it does not."""
    if posterior.simulations is None:
        return ""
    generator = torch.Generator().manual_seed(seed)
    x = _typical(posterior.simulations, change, generator, observed)
    denoiser = posterior.condition(x, predict=observed is not None)
    refused = TransportGuidance(change, posterior.base.noise).refused(denoiser, generator)
    if len(refused) <= OBSERVATIONS / 2:  # the few are drawn by rejuvenation
        return ""
    return next(iter(refused.values())).split(": ", 1)[1].split(". ", 1)[0]


def _low_start(posterior: Posterior, quadratics: list[Quadratic] | None) -> str:
    """Why a single transport, which need not refuse, has no good start; empty if it has one."""
    if quadratics is None or len(quadratics) > 1:
        return ""
    top = largest_noise(quadratics[0])
    if top >= min(posterior.base.s_max, LOW_START):
        return ""
    return f"it could start no higher than at noise {top:.3g} (standardised units), where a resampled pool is the better start"


def _typical(simulations: Simulations, change: PriorChange, generator: Generator, observed: Tensor | None) -> Tensor:
    """Observations where q puts them, with shape (K, m); NaN where they are to be predicted."""
    x = likely_x(usable(simulations, observed), change, OBSERVATIONS, generator)
    return x if observed is None else torch.where(observed, x, torch.nan)
