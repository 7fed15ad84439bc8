"""Losses whose minimiser over a is the log density ratio a* = log E[r].

Each is the variational objective -E_q[h] + E_p[g(h)] written in a = log of the ratio: h is the increasing function of a
at which g'(h) = e^a, constants dropped. Rows come from p with weights r = q/p, so E_q[h] = E_p[r h]:

| name | g(h) | h(a) | loss(a, r) |
|---|---|---|---|
| nre | -log(1 - e^h) | log sigmoid(a) | r softplus(-a) + softplus(a) |
| pearson | h^2/4 + h | 2 (e^a - 1) | -2 r (e^a - 1) + (e^a - 1)^2 + 2 (e^a - 1) |
| reverse_kl | -1 - log(-h) | -e^-a | r e^-a + a |
| hellinger | h/(1 - h) | 1 - e^(-a/2) | r e^(-a/2) + e^(a/2) |
| kliep | e^(h-1) | a + 1 | -r a, with log mean exp a over the batch |

KLIEP is not pointwise: its loss -mean(r a) + log mean(e^a) has a lower bound only if mean(r) = 1 in the batch (adding
a constant c to a changes it by c (1 - mean r)), so r is normalised there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from reprior.errors import InputError

__all__ = ["ESTIMATORS", "loss_of"]

# e^a overflows float32 beyond a = 88, and its square beyond 44. Above this value of a the exponential is continued as a
# straight line. A clamp would have no slope there, so that training could not lead back.
_LARGEST = 15.0


def _exp(u: Tensor) -> Tensor:
    """e^u, continued as a straight line above _LARGEST."""
    kept = u.clamp(max=_LARGEST)
    return torch.exp(kept) * (1 + (u - kept))


def nre(a: Tensor, r: Tensor) -> Tensor:
    """Logistic loss; the most robust of the five, its gradient in a is bounded by max(r, 1)."""
    return (r * softplus(-a) + softplus(a)).mean()


def kliep(a: Tensor, r: Tensor) -> Tensor:
    """Kullback-Leibler importance estimation; a is found up to a constant."""
    r = r / r.mean().clamp(min=torch.finfo(r.dtype).tiny)
    log_mean_exp = torch.logsumexp(a.flatten(), 0) - math.log(a.numel())
    return log_mean_exp - (r * a).mean()


def pearson(a: Tensor, r: Tensor) -> Tensor:
    """Pearson chi-square: least squares on the ratio itself."""
    ratio = _exp(a)
    return (ratio.square() - 1 - 2 * r * (ratio - 1)).mean()


def reverse_kl(a: Tensor, r: Tensor) -> Tensor:
    """Reverse Kullback-Leibler."""
    return (r * _exp(-a) + a).mean()


def hellinger(a: Tensor, r: Tensor) -> Tensor:
    """Squared Hellinger distance."""
    return (r * _exp(-a / 2) + _exp(a / 2)).mean()


ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "nre": nre,
    "kliep": kliep,
    "pearson": pearson,
    "reverse_kl": reverse_kl,
    "hellinger": hellinger,
}


def loss_of(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of an estimator, by name: (a with shape (n,), r with shape (n,)) -> a scalar."""
    if name not in ESTIMATORS:
        raise InputError(f"estimator {name!r} is unknown; allowed: {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]
