"""Diagnostics of importance weights."""

from __future__ import annotations

import math
import warnings

from torch import Tensor

from reprior import metrics

__all__ = ["pareto_k", "share"]


def share(log_w: Tensor) -> float:
    """ESS/N of log weights, with shape (n,): `metrics.ess`, and 0 where every weight is zero."""
    return 0.0 if bool((log_w == -math.inf).all()) else metrics.ess(log_w)


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
    if float(values.max() - values.min()) < 1e-8:
        return -math.inf  # all weights equal: no tail
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, k_hat = array_stats.psislw(-values)  # it takes the negative of log weights
    return float(k_hat)
