"""The classifier two-sample test (C2ST): the accuracy with which boosted trees tell two sets of samples apart.

The accuracy is measured on rows that the trees were not trained on. It is 1/2 for equal distributions and 1 for disjoint
ones; no classifier can exceed 1/2 + TV/2, with TV the total variation distance (Lopez-Paz and Oquab 2017, arXiv 1610.06545).
Samples may have weights. Both classes then have the same total weight in training and in the accuracy, and no sample is
duplicated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from reprior.errors import InputError

__all__ = ["c2st"]

LEVELS = (
    128  # quantiles to which values of weighted samples are rounded: computed once, and not in each fit of the trees
)
NO_WEIGHT = 1e-6  # rows with less than this fraction of the average weight are left out: they only cost time


def c2st(
    a: Tensor, b: Tensor, log_wa: Tensor | None = None, log_wb: Tensor | None = None, seed: int = 1, folds: int = 5
) -> float:
    """The accuracy with which boosted trees tell a from b on held-out rows, in stratified folds.

    Without weights the larger set is cut at random to the size of the other. Otherwise guessing the larger set would already
    be better than 1/2.

    Arguments:
        a: samples, with shape (n, d); the reference, where there is one.
        b: samples, with shape (m, d).
        log_wa: log weights of a, with shape (n,), -inf for none; all equal if not given.
        log_wb: the same for b, with shape (m,).
        seed: of the folds, and of the rows taken from the larger set.
        folds: the number of folds.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    a, b = _checked(a, "a", folds), _checked(b, "b", folds)
    if a.shape[1] != b.shape[1]:
        raise InputError(f"a and b must have the same dimension; got shapes {tuple(a.shape)} and {tuple(b.shape)}")
    # early_stopping="auto" would switch on above 10,000 rows, and figures would depend on the number of samples.
    settings: dict[str, Any] = {"max_iter": 60, "max_leaf_nodes": 15, "early_stopping": False}
    trees = HistGradientBoostingClassifier(random_state=seed, **settings)
    splits = StratifiedKFold(folds, shuffle=True, random_state=seed)
    if log_wa is None and log_wb is None:
        a, b = _even(a, b, seed)
        scale = a.std(0)
        data = (torch.cat([a, b]) - a.mean(0)) / torch.where(scale > 0, scale, torch.ones_like(scale))
        labels = np.repeat([0, 1], [len(a), len(b)])
        return float(cross_val_score(trees, data.numpy(), labels, cv=splits, scoring="accuracy").mean())
    weight = np.concatenate([_weights(log_wa, len(a), "log_wa"), _weights(log_wb, len(b), "log_wb")])
    labels = np.repeat([0, 1], [len(a), len(b)])
    data = _levels(torch.cat([a, b]).numpy())
    keep = weight > NO_WEIGHT * weight.mean()
    data, labels, weight = data[keep], labels[keep], weight[keep]
    right, total = np.zeros(2), np.zeros(2)
    for train, test in splits.split(data, labels):
        balanced = weight[train] / np.bincount(labels[train], weight[train])[labels[train]] * len(train)
        hit = trees.fit(data[train], labels[train], sample_weight=balanced).predict(data[test]) == labels[test]
        right += np.bincount(labels[test], weight[test] * hit, minlength=2)
        total += np.bincount(labels[test], weight[test], minlength=2)
    return float((right / total).mean())


def _checked(samples: Tensor, name: str, fewest: int) -> Tensor:
    """Samples with shape (n, d), on the CPU in double precision."""
    value = torch.as_tensor(samples).detach().cpu().double()
    if value.ndim != 2 or value.shape[1] == 0 or len(value) < fewest:
        raise InputError(f"{name} needs shape (n, d) with at least {fewest} rows; got {tuple(value.shape)}")
    bad = int((~value.isfinite()).any(1).sum())
    if bad:
        raise InputError(f"{name} has {bad} rows with NaN or infinity out of {len(value)}: all must be finite")
    return value


def _weights(log_w: Tensor | None, n: int, name: str) -> np.ndarray:
    """Normalised weights, with shape (n,)."""
    value = torch.zeros(n, dtype=torch.float64) if log_w is None else torch.as_tensor(log_w).detach().cpu().double()
    if value.shape != (n,) or not bool((value < torch.inf).all()) or not bool((value > -torch.inf).any()):
        raise InputError(f"{name} needs shape ({n},), entries that are finite or -inf, and one that is finite")
    return torch.softmax(value, 0).numpy()


def _even(a: Tensor, b: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Both sets with the size of the smaller one; rows of the larger one are drawn at random."""
    n, generator = min(len(a), len(b)), torch.Generator().manual_seed(seed)
    a, b = (v if len(v) == n else v[torch.randperm(len(v), generator=generator)[:n]] for v in (a, b))
    return a, b


def _levels(data: np.ndarray) -> np.ndarray:
    """Each column as the numbers of its quantiles; trees use only the order of values."""
    inner = np.linspace(0, 1, LEVELS + 1)[1:-1]
    columns = [np.searchsorted(np.unique(np.quantile(c, inner)), c) for c in data.T]
    return np.stack(columns, axis=1).astype(np.float64)
