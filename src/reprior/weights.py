"""Diagnostics of importance weights."""

from __future__ import annotations

import math
import warnings

from torch import Tensor

from reprior_bench import metrics

__all__ = ["largest_step", "pareto_k", "share"]


def share(log_w: Tensor) -> float:
    """ESS/N of log weights, with shape (n,): `metrics.ess`, and 0 where every weight is zero."""
    return 0.0 if bool((log_w == -math.inf).all()) else metrics.ess(log_w)


def largest_step(log_w: Tensor, most: float, ess: float) -> float:
    """The largest power up to ``most`` at which weights w^power keep an ESS/N of ``ess``; at least 1e-3."""
    if metrics.ess(most * log_w) >= ess:
        return most
    low, high = 0.0, most
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if metrics.ess(middle * log_w) >= ess else (low, middle)
    return max(low, 1e-3)


def pareto_k(log_w: Tensor) -> float:
    """The Pareto shape k-hat of the largest weights (PSIS); below 0.7 an average under them can be trusted.

    NaN where arviz-stats is not installed (it needs Python 3.11).

    Arguments:
        log_w: log weights, with shape (n,).
    """
    try:
        from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]
    except ImportError:
        return math.nan
    values = log_w.detach().cpu().double().numpy().copy()
    values = values[~(values == -math.inf)]
    if len(values) < 25:
        return math.inf
    values.sort()
    tail = math.ceil(min(len(values) / 5, 3 * math.sqrt(len(values))))  # what a Pareto shape is fitted to
    if float(values[-1] - values[-tail - 1]) < 1e-8:
        return -math.inf  # the largest weights are equal (a ratio with steps, or a cap): no tail
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, k_hat = array_stats.psislw(-values)  # it takes the negative of log weights
    return float(k_hat)
