"""Diagnostics of importance weights."""

from __future__ import annotations

import math
import warnings

from torch import Tensor

__all__ = ["pareto_k"]


def pareto_k(log_w: Tensor) -> float:
    """The Pareto shape k-hat of the largest weights (PSIS); below 0.7 an average under them can be trusted.

    Arguments:
        log_w: log weights, with shape (n,).
    """
    from arviz_stats.base import array_stats

    values = log_w.double().numpy().copy()
    values = values[~(values == -math.inf)]
    if len(values) < 25:
        return math.inf
    if float(values.max() - values.min()) < 1e-8:
        return -math.inf  # all weights equal: no tail
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, k_hat = array_stats.psislw(-values)  # it takes the negative of log weights
    return float(k_hat)
