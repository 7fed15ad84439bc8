"""Importance weights: effective sample size, weight of the tail, tempering step, resampling.

With log weights log w_i of n draws, the effective sample size is ESS = (sum w)^2 / sum w^2 (Kish 1965), and the
relative ESS is ESS / n, in (0, 1]. Pareto k-hat is the shape of a generalised Pareto distribution fitted to the largest
weights (Vehtari et al. 2024, arXiv 1507.02646): below 0.7 an average under the weights can be relied on.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Generator, Tensor

from reprior.errors import InputError, RefusedError

__all__ = ["check_mass", "massless", "multinomial", "pareto_k", "relative_ess", "systematic", "temper_step"]

SMALLEST_STEP = 1e-3  # smallest increase of the power of r in one step: it bounds the number of steps by 1,000
NO_MASS = "all weights are zero: no base sample has mass under the target prior; the two may not agree"


def relative_ess(log_w: Tensor) -> float:
    """ESS / n of log weights with shape (n,); 0 where every weight is zero."""
    log_w = log_w.detach().double()
    if len(log_w) == 0 or bool((log_w == -math.inf).all()):
        return 0.0
    if not bool((log_w < math.inf).all()):
        raise InputError("log weights must be finite or -inf; got NaN or +inf")
    w = torch.exp(log_w - log_w.max())
    return float(w.sum() ** 2 / w.square().sum() / len(w))


def temper_step(log_w: Tensor, most: float, ess: float) -> float:
    """The largest power b up to ``most`` at which the weights w^b keep a relative ESS of ``ess``.

    Arguments:
        log_w: log weights, with shape (n,).
        most: the upper limit of b.
        ess: the relative ESS to keep.
    """
    if relative_ess(most * log_w) >= ess:
        return most
    low, high = 0.0, most
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if relative_ess(middle * log_w) >= ess else (low, middle)
    return max(low, SMALLEST_STEP)


def pareto_k(log_w: Tensor) -> float:
    """Pareto k-hat of log weights with shape (n,); NaN without arviz-stats, which needs Python 3.11."""
    try:
        from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]
    except ImportError:
        return math.nan
    values = log_w.detach().cpu().double().numpy().copy()
    values = values[~(values == -math.inf)]
    if len(values) < 25:
        return math.inf
    values.sort()
    tail = math.ceil(min(len(values) / 5, 3 * math.sqrt(len(values))))  # the draws that the shape is fitted to
    if float(values[-1] - values[-tail - 1]) < 1e-8:
        return -math.inf  # the largest weights are equal: there is no tail
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, k_hat = array_stats.psislw(-values)  # it takes the negative of log weights
    return float(k_hat)


def massless(log_w: Tensor) -> dict[int, str]:
    """The observations where all weights are zero, each with the reason; log weights with shape (n, K)."""
    return dict.fromkeys((~(log_w > -torch.inf)).all(0).nonzero()[:, 0].tolist(), NO_MASS)


def check_mass(log_w: Tensor) -> None:
    """Refuses log weights, with shape (n,), that are all zero."""
    if massless(log_w.unsqueeze(1)):
        raise RefusedError(NO_MASS)


def systematic(log_w: Tensor, n: int, generator: Generator) -> Tensor:
    """Systematic resampling (Kitagawa 1996): draw i, of weight w_i, is kept n w_i times, rounded up or down.

    Returns the indices in random order, with shape (n,).

    Arguments:
        log_w: log weights, with shape (pool,).
        n: the number of draws to return.
        generator: the source of randomness.
    """
    check_mass(log_w)
    weights = torch.softmax(log_w.double(), 0)
    points = (torch.arange(n, dtype=torch.float64) + torch.rand(1, generator=generator, dtype=torch.float64)) / n
    index = torch.searchsorted(weights.cumsum(0), points).clamp(max=len(weights) - 1)
    return index[torch.randperm(n, generator=generator)]


def multinomial(log_w: Tensor, n: int, generator: Generator) -> Tensor:
    """Indices of n draws with replacement; arguments as in `systematic`."""
    check_mass(log_w)
    return torch.multinomial(torch.softmax(log_w.double(), 0), n, replacement=True, generator=generator)
