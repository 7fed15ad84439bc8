"""Reading a target prior: whatever the user gives as q becomes a `PriorChange`.

q may be a distribution (normalised), a callable log-density (up to a constant), or samples, from which log q/p is
learned (`reprior.ratio_from_samples`). Before anything is trained, the support of q is compared with that of p. No
reweighting can reach mass of q where p has none, so this is an error unless the user accepts it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast
from warnings import warn

import numpy as np
import torch
from torch import Tensor

from reprior import priors
from reprior.arrays import as_array
from reprior.change import PriorChange
from reprior.errors import InputError, SupportError
from reprior.standardizer import Standardizer

__all__ = ["make_change", "outside_fraction"]

TOLERATED = 0.01  # this fraction of q's mass may lie outside p's support: it is cut off, and Info says so
CHECKED = 10_000  # draws of q that are compared with the support of p: they show a fraction of 0.01 to 10 % of itself
FEWEST = 100  # samples of q: a classifier learns nothing useful from fewer


def make_change(
    prior: Any, target: Any, scale: Standardizer, seed: int, accept_outside: bool = False, progress: bool = False
) -> PriorChange:
    """Reads a target prior and checks it against the prior.

    Arguments:
        prior: the prior p.
        target: a distribution (anything `reprior.priors.as_prior` takes), a callable log-density, or samples of q (a
            tensor or array) with shape (n, d).
        scale: the standardisation of theta.
        seed: seeds the checks and the ratio that samples need.
        accept_outside: go on although q has mass outside p's support; the result is q restricted to that support.
        progress: show the progress bar of the ratio that samples need.
    """
    target = as_array(target)
    if isinstance(target, np.ndarray):
        target = torch.as_tensor(target, dtype=torch.float32)
    if isinstance(target, Tensor):
        change = _from_samples(prior, target, scale, seed, accept_outside, progress)
    elif callable(target) and not hasattr(target, "log_prob") and not hasattr(target, "logpdf"):
        log_q = _checked_callable(cast(Callable[[Tensor], Tensor], target), prior, seed)
        change = PriorChange(prior, scale, partial(_log_ratio, log_q, prior), None, "callable")
    else:
        change = _from_distribution(prior, target, scale, seed, accept_outside)
    if len(change.points) == 0:
        raise SupportError("the target prior has no mass on any of 1,000 draws of the training prior")
    return change


def outside_fraction(prior: Any, theta: Tensor, accept: bool) -> float:
    """The fraction of draws of q, with shape (n, d), where p has no mass; if it is not small, an error unless accepted."""
    fraction = float((~torch.isfinite(priors.log_prob(prior, theta))).float().mean())
    if fraction > TOLERATED and not accept:
        raise SupportError(
            f"{100 * fraction:.3g} % of the target prior's mass lies outside the support of the prior the posterior was "
            "trained under; no reweighting can reach it. Narrow the target prior, or pass accept_outside=True to "
            "get the posterior under the target prior restricted to that support"
        )
    if fraction >= 0.999:
        raise SupportError("the target prior has no mass inside the support of the training prior")
    return fraction


def _from_distribution(prior: Any, target: Any, scale: Standardizer, seed: int, accept: bool) -> PriorChange:
    dim, target = len(scale.shift), priors.as_prior(target)
    if priors.dim_of(target) != dim:
        hint = "; a list of distributions gives each parameter its own" if priors.dim_of(target) == 1 else ""
        raise InputError(f"the target prior has {priors.dim_of(target)} parameters; the posterior has {dim}{hint}")
    outside = outside_fraction(prior, priors.sample(target, CHECKED, seed), accept)
    log_ratio = partial(_log_ratio, partial(priors.log_prob, target), prior)
    return PriorChange(prior, scale, log_ratio, target, "distribution", outside)


def _log_ratio(log_q: Callable[[Tensor], Tensor], prior: Any, theta: Tensor) -> Tensor:
    return log_q(theta) - priors.log_prob(prior, theta)


def _checked_callable(target: Callable[[Tensor], Tensor], prior: Any, seed: int) -> Callable[[Tensor], Tensor]:
    theta = priors.sample(prior, 16, seed).float()
    with torch.no_grad():
        value = torch.as_tensor(target(theta))
    if value.shape != (16,):
        raise InputError(
            f"a callable target prior must map theta of shape (n, d) to (n,); it gave {tuple(value.shape)} for (16, d)"
        )
    many = priors.sample(prior, 1_000, seed).float()
    with torch.no_grad():
        unknown = float(torch.isnan(torch.as_tensor(target(many))).float().mean())
    if unknown > 0:
        warn(
            f"the target's log-density is NaN at {100 * unknown:.3g} % of draws of the prior: these are taken to have no "
            "mass. If that is right, return -inf there",
            stacklevel=4,
        )
    return partial(_call, target, priors.followed(target, theta))


def _call(target: Callable[[Tensor], Tensor], followed: bool, theta: Tensor) -> Tensor:
    """A user's log-density at theta with shape (*, d); followed: whether autograd can differentiate it."""
    flat = theta.reshape(-1, theta.shape[-1]).float()  # a user's network may accept single precision only
    flat = flat if followed else flat.detach()
    return torch.as_tensor(target(flat)).to(theta).reshape(theta.shape[:-1])


def _from_samples(
    prior: Any, samples: Tensor, scale: Standardizer, seed: int, accept: bool, progress: bool
) -> PriorChange:
    from reprior.ratio_from_samples import learn_log_ratio

    dim = len(scale.shift)
    if samples.ndim != 2 or samples.shape[1] != dim:
        raise InputError(f"samples of the target prior need shape (n, {dim}); got {tuple(samples.shape)}")
    if not bool(torch.isfinite(samples).all()):
        raise InputError("samples of the target prior hold NaN or inf")
    if len(samples) < FEWEST:
        raise InputError(f"at least {FEWEST} samples of the target prior are needed; got {len(samples)}")
    outside = outside_fraction(prior, samples, accept)
    kept = samples[torch.isfinite(priors.log_prob(prior, samples))].float()
    network = learn_log_ratio(
        kept, priors.sample(prior, max(len(kept), 20_000), seed + 1), scale, seed, progress=progress
    )
    return PriorChange(prior, scale, network, None, "samples", outside)
