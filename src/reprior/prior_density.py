"""The log-density of a prior, -inf outside its support, and a fingerprint of a log-density."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

from reprior.seeds import seeded

__all__ = ["fingerprint", "followed", "log_prob", "same_fingerprint"]

# The lowest value in a fingerprint. It stands for all lower ones and for -inf, because files hold no infinities; a density
# of e^-10,000 is zero for every purpose.
_LOWEST = -1e4
# Two machines, or single and double precision, agree on a log-density to about 1e-5 of its value. Priors that a user could
# confuse differ by far more than this tolerance.
_TOLERANCE = 1e-3


def log_prob(prior: Any, theta: Tensor) -> Tensor:
    """log p(theta), and -inf outside the support, whether or not the prior validates its arguments.

    Arguments:
        prior: a prior, as `reprior.priors.as_prior` gives it.
        theta: parameters, with shape (*, d).

    Returns: the log-density, with shape (*).
    """
    if theta.numel() == 0:
        return theta.new_zeros(theta.shape[:-1])
    # Many priors, sbi's among them, take rows only.
    return _log_prob_of_rows(prior, theta.reshape(-1, theta.shape[-1])).reshape(theta.shape[:-1])


def fingerprint(log_density: Callable[[Tensor], Tensor], points: Tensor) -> list[float]:
    """A fingerprint of a log-density that is known up to a constant: its values at fixed points, minus the largest.

    It works for any distribution. `same_fingerprint` compares two.

    Arguments:
        log_density: the log-density, (n, d) -> (n,).
        points: where it is evaluated, with shape (n, d). To tell it from another density, include points where that one has
            its mass.
    """
    with torch.no_grad():
        value = log_density(points).detach().cpu().float()
    return (value - value.max()).nan_to_num(nan=_LOWEST, neginf=_LOWEST).clamp(min=_LOWEST).tolist()


def same_fingerprint(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two fingerprints, at the same points, agree up to rounding.

    Arguments:
        one: a fingerprint.
        other: another one.
    """
    values = torch.tensor(one), torch.tensor(other)
    return values[0].shape == values[1].shape and torch.allclose(*values, rtol=_TOLERANCE, atol=_TOLERANCE)


def followed(log_density: Callable[[Tensor], Any], theta: Tensor) -> bool:
    """Whether a log-density accepts a tensor that autograd tracks; one that uses numpy or scipy does not.

    Arguments:
        log_density: the log-density, which works without autograd.
        theta: parameters to try it on, with shape (n, d).
    """
    with torch.enable_grad():
        try:
            log_density(theta.detach().clone().requires_grad_(True))
        except (RuntimeError, TypeError):
            return False
    return True


def _log_prob_of_rows(prior: Any, theta: Tensor) -> Tensor:
    if isinstance(prior, td.MixtureSameFamily):
        return _mixture_log_prob(prior, theta)
    if isinstance(prior, td.Independent) and isinstance(prior.base_dist, td.MixtureSameFamily):
        return _mixture_log_prob(prior.base_dist, theta).sum(-1)
    try:
        support = prior.support
    except (AttributeError, NotImplementedError):
        support = None
    if support is None:
        return _as_log_density(prior.log_prob(theta), theta)
    inside = _inside(prior, theta)
    if bool(inside.all()):
        return _as_log_density(prior.log_prob(theta), theta)
    out = theta.new_full(theta.shape[:-1], -torch.inf)
    if bool(inside.any()):
        out[inside] = _as_log_density(prior.log_prob(theta[inside]), theta[inside])
    return out


def _inside(prior: Any, theta: Tensor) -> Tensor:
    """Which rows of theta lie in the support, with shape (n,)."""
    if isinstance(prior, td.Independent):
        return _inside(prior.base_dist, theta)
    inside = prior.support.check(theta)
    inside = inside.reshape(len(theta), -1).all(-1)
    if isinstance(prior, td.TransformedDistribution):  # torch says that a shifted Gamma's support is the whole line
        below: Any = theta
        for transform in reversed(prior.transforms):
            below = transform.inv(below)
        inside = inside & _inside(prior.base_dist, below)
    return inside


def _mixture_log_prob(prior: td.MixtureSameFamily, theta: Tensor) -> Tensor:
    # A component counts only inside its own support. torch refuses a theta that is outside the support of any component, so
    # that component is evaluated at a point that it allows, and then left out.
    component = prior.component_distribution
    each = theta.unsqueeze(-1 - len(prior.event_shape))
    inside = component.support.check(each)  # pyright: ignore[reportOptionalMemberAccess]
    if not bool(inside.all()):
        with seeded(0):
            allowed = component.sample().to(theta)
        mask = inside.unsqueeze(-1) if len(prior.event_shape) == 1 else inside
        each = torch.where(mask, each, allowed)
    logs = component.log_prob(each).masked_fill(~inside, -torch.inf)
    return torch.logsumexp(logs + torch.log_softmax(prior.mixture_distribution.logits, -1), -1)


def _as_log_density(value: Tensor, theta: Tensor) -> Tensor:
    value = torch.as_tensor(value, dtype=theta.dtype, device=theta.device)
    # A prior of one parameter may keep its dimension: (n, 1).
    if value.shape != theta.shape[:-1]:
        value = value.reshape(theta.shape[:-1])
    return value.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
