"""How far one set of samples is from another, and which methods share the first place.

Two-sample metrics, between samples a with shape (n, d) and b with shape (m, d) (the classifiers take as many rows of
one as of the other: else guessing the larger set would already be better than 1/2):

| name | what it computes | for a perfect sampler |
|---|---|---|
| `c2st` | held-out accuracy of a random forest that tells a from b (sbi's default) | 1/2 |
| `c2st_fast` | `reprior.diagnostics.c2st`: boosted trees, 20 times faster, sees small shifts in 2-D | 1/2 |
| `mmd` | squared maximum mean discrepancy, E k(a, a') + E k(b, b') - 2 E k(a, b) | 0 on average |
| `sliced_w2` | sqrt(E_u W2^2(u'a, u'b)) over random directions u | falls to 0 as n grows |
| `w2` | exact 2-Wasserstein distance, sqrt(min over couplings E |a - b|^2) | falls to 0, slowly in high d |

The best accuracy any classifier can reach is 1/2 + TV(a, b)/2, with TV the total variation distance. Rows
that occur more than once (resampling with replacement) land in training and test folds alike, so a forest
learns them by heart: `c2st` of a plain bootstrap copy is .68 to .70 though the distribution is right;
`c2st_fast` gives .54 to .57 (5,000 samples, 2-D and 6-D).

The W2 distances of two finite sets of the SAME distribution are not 0: with 5,000 standard normal samples
each, the exact one is .10 in 2-D and .86 in 6-D, the sliced one .03 and .04.

Also `rmse` (distance to the true parameters) and `best_group` (which methods are not significantly worse than the
best one). The relative ESS is in `reprior.weights`. Heavy libraries are imported when first needed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reprior.diagnostics.c2st import c2st as c2st_fast
from reprior.errors import InputError

__all__ = [
    "best_group",
    "c2st",
    "c2st_fast",
    "median_bandwidth",
    "mmd",
    "moment_errors",
    "rmse",
    "sliced_w2",
    "w2",
]

_BLOCK = 1024  # rows of a kernel matrix held at once
_MEDIAN_POINTS = 2048  # points whose pairs give the median distance


def c2st(a: Tensor, b: Tensor, seed: int = 1, folds: int = 5) -> float:
    """Classifier two-sample test as sbi has it: scikit-learn's random forest on z-scored samples, plain k-fold.

    Both sets are shifted and scaled by the mean and standard deviation of a, so pass the reference first.

    Arguments:
        a: Reference samples, with shape (n, d).
        b: Samples to judge, with shape (m, d).
        seed: Seed of the forest, of the folds, and of the rows taken from the larger set.
        folds: Number of cross-validation folds.

    Returns: the accuracy on held-out samples: 1/2 for sets that cannot be told apart, 1 for disjoint ones.
    """
    a, b = _even(*_pair(a, b, fewest=folds), seed)
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import KFold, cross_val_score

    splits = KFold(n_splits=folds, shuffle=True, random_state=seed)
    forest = RandomForestClassifier(random_state=seed)
    return float(cross_val_score(forest, *_labelled(a, b), cv=splits, scoring="accuracy").mean())


def mmd(a: Tensor, b: Tensor, bandwidth: float | str = "median") -> float:
    """Squared maximum mean discrepancy with the kernel k(u, v) = exp(-|u - v|^2 / (2 bandwidth^2)).

    The unbiased estimate (pairs of a point with itself left out), so it can fall slightly below 0. Kernel
    sums are formed in blocks: 5,000 v 5,000 samples need about 100 MB.

    Arguments:
        a: Samples, with shape (n, d).
        b: Samples, with shape (m, d).
        bandwidth: Length scale of the kernel, or "median" for `median_bandwidth(a, b)`.
    """
    a, b = _pair(a, b, fewest=2)
    if isinstance(bandwidth, str):
        if bandwidth != "median":
            raise InputError(f'bandwidth is {bandwidth!r}: it must be "median" or a positive number.')
        scale = median_bandwidth(a, b)
    else:
        scale = float(bandwidth)
    if not (0 < scale < float("inf")):
        raise InputError(f"bandwidth is {scale}: it must be positive and finite.")
    n, m = len(a), len(b)
    middle = torch.cat([a, b]).mean(dim=0)  # distances by matrix products lose digits far from zero
    a, b = a - middle, b - middle
    within_a = (_kernel_sum(a, a, scale) - n) / (n * (n - 1))
    within_b = (_kernel_sum(b, b, scale) - m) / (m * (m - 1))
    between = _kernel_sum(a, b, scale) / (n * m)
    return within_a + within_b - 2 * between


def median_bandwidth(a: Tensor, b: Tensor) -> float:
    """The median distance between two different points of the pooled samples.

    Over all pairs up to 2,048 pooled points; above that, over the pairs of 2,048 points drawn with a fixed
    seed (which moves the median by about 1 %).

    Arguments:
        a: Samples, with shape (n, d).
        b: Samples, with shape (m, d).
    """
    a, b = _pair(a, b, fewest=1)
    pooled = torch.cat([a, b])
    if len(pooled) > _MEDIAN_POINTS:
        generator = torch.Generator().manual_seed(0)
        pooled = pooled[torch.randperm(len(pooled), generator=generator)[:_MEDIAN_POINTS]]
    median = float(torch.pdist(pooled).median())
    if median == 0:
        raise InputError("the median distance of the pooled samples is 0: give a bandwidth.")
    return median


def sliced_w2(a: Tensor, b: Tensor, projections: int = 200, seed: int = 0) -> float:
    """Sliced 2-Wasserstein distance: sqrt of the mean over random directions of the squared 1-D distance.

    Arguments:
        a: Samples, with shape (n, d).
        b: Samples, with shape (m, d).
        projections: Number of directions, uniform on the unit sphere (for d = 1 there is only one).
        seed: Seed of the directions.
    """
    a, b = _pair(a, b, fewest=1)
    if projections < 1:
        raise InputError(f"projections is {projections}: it must be at least 1.")
    import ot

    count = 1 if a.shape[1] == 1 else projections
    directions = np.random.default_rng(seed).standard_normal((count, a.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    total = 0.0
    for start in range(0, count, 50):  # in blocks, to bound the memory
        block = directions[start : start + 50].T
        distance: Any = ot.sliced_wasserstein_distance(a.numpy(), b.numpy(), projections=block, p=2)
        total += float(distance) ** 2 * block.shape[1]
    return (total / count) ** 0.5


def w2(a: Tensor, b: Tensor) -> float:
    """Exact 2-Wasserstein distance, by linear programming (sorting for d = 1).

    The cost matrix needs 8 n m bytes and the time grows like n^2 to n^3: 4 to 8 s for 5,000 v 5,000.

    Arguments:
        a: Samples, with shape (n, d).
        b: Samples, with shape (m, d).
    """
    a, b = _pair(a, b, fewest=1)
    import ot

    if a.shape[1] == 1:
        squared: Any = ot.wasserstein_1d(a[:, 0].numpy(), b[:, 0].numpy(), p=2)
    else:
        cost = ot.dist(a.numpy(), b.numpy(), metric="sqeuclidean")
        squared, log = ot.emd2([], [], cost, numItermax=10_000_000, log=True)
        if log["warning"] is not None:
            raise RuntimeError(f"exact transport did not finish: {log['warning']}")
    return float(max(float(squared), 0.0) ** 0.5)


def moment_errors(exact: Tensor, samples: Tensor) -> tuple[float, float]:
    """How far mean and standard deviation of samples are off, each a root mean square over parameters.

    Arguments:
        exact: samples to judge by, with shape (n, d).
        samples: the samples, with shape (m, d).

    Returns: the error of the mean in exact standard deviations, and the relative error of the standard deviation.
    """
    exact, samples = _pair(exact, samples, 2)
    sd = exact.std(0)
    shift, stretch = (samples.mean(0) - exact.mean(0)) / sd, samples.std(0) / sd - 1
    return float(shift.square().mean().sqrt()), float(stretch.square().mean().sqrt())


def rmse(samples: Tensor, theta_star: Tensor) -> float:
    """Root mean square distance of samples to the true parameters, sqrt(mean (theta - theta_star)^2).

    The mean is over samples and over dimensions.

    Arguments:
        samples: Samples of theta, with shape (n, d).
        theta_star: The true parameters, with shape (d,).
    """
    samples = _samples(samples, "samples", fewest=1)
    theta_star = torch.as_tensor(theta_star).detach().cpu().double()
    if theta_star.shape != samples.shape[1:]:
        raise InputError(
            f"theta_star has shape {tuple(theta_star.shape)}: it must be ({samples.shape[1]},), "
            f"as samples has shape {tuple(samples.shape)}."
        )
    if not bool(theta_star.isfinite().all()):
        raise InputError(f"theta_star is {theta_star.tolist()}: it must be finite.")
    return float((samples - theta_star).square().mean().sqrt())


def best_group(values: Mapping[Any, Any] | Any, alpha: float = 0.05) -> set[Hashable]:
    """The methods that are not significantly worse than the one with the lowest mean.

    Each method is tested against the best by a one-sided Wilcoxon signed-rank test, paired by observation; it
    is in the group when p > alpha. With fewer than 5 observations p cannot fall below .05, so all are in.

    Arguments:
        values: Lower is better. An array with shape (n_obs, n_methods), or a mapping from each method's name
            to its n_obs values.
        alpha: Level of the test, in (0, 1).

    Returns: column numbers for an array, names for a mapping.
    """
    if not 0 < alpha < 1:
        raise InputError(f"alpha is {alpha}: it must lie in (0, 1).")
    names, table = _table(values)
    from scipy.stats import wilcoxon

    test: Any = wilcoxon
    best = int(table.mean(axis=0).argmin())
    group: set[Hashable] = set()
    for column, name in enumerate(names):
        difference = table[:, column] - table[:, best]
        # With no difference at all there is nothing to rank, and nothing speaks against the method.
        if not difference.any() or test(difference, alternative="greater").pvalue > alpha:
            group.add(name)
    return group


def _table(values: Mapping[Any, Any] | Any) -> tuple[list[Any], np.ndarray]:
    """Names and a finite (n_obs, n_methods) array."""
    if isinstance(values, Mapping):
        names = list(values)
        columns = [np.asarray(values[name], dtype=float) for name in names]
        for name, column in zip(names, columns, strict=True):
            if column.shape != columns[0].shape or column.ndim != 1:
                raise InputError(
                    f"values[{name!r}] has shape {column.shape}: each method needs one value per observation."
                )
        table = np.stack(columns, axis=1) if columns else np.zeros((0, 0))
    else:
        table = np.asarray(values, dtype=float)
        names = list(range(table.shape[-1])) if table.ndim == 2 else []
    if table.ndim != 2 or table.size == 0:
        raise InputError(f"values has shape {table.shape}: it must be (n_obs, n_methods), neither 0.")
    for column, name in enumerate(names):
        if not np.isfinite(table[:, column]).all():
            raise InputError(f"values of method {name!r} hold NaN or infinity: they must be finite.")
    return names, table


def _kernel_sum(a: Tensor, b: Tensor, scale: float) -> float:
    """Sum over all pairs of exp(-|a_i - b_j|^2 / (2 scale^2)), a block of rows at a time."""
    total = 0.0
    for block in a.split(_BLOCK):
        total += float(torch.cdist(block, b).square_().mul_(-0.5 / scale**2).exp_().sum())
    return total


def _even(a: Tensor, b: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """As many rows of one set as of the other, drawn from the larger one."""
    n, generator = min(len(a), len(b)), torch.Generator().manual_seed(seed)
    a, b = (v if len(v) == n else v[torch.randperm(len(v), generator=generator)[:n]] for v in (a, b))
    return a, b


def _labelled(a: Tensor, b: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Both sets, shifted and scaled by the mean and standard deviation of a, and which of them each row is from."""
    shift, scale = a.mean(dim=0), a.std(dim=0)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return ((torch.cat([a, b]) - shift) / scale).numpy(), np.repeat([0, 1], [len(a), len(b)])


def _pair(a: Tensor, b: Tensor, fewest: int) -> tuple[Tensor, Tensor]:
    a, b = _samples(a, "a", fewest), _samples(b, "b", fewest)
    if a.shape[1] != b.shape[1]:
        raise InputError(
            f"a has shape {tuple(a.shape)} and b has shape {tuple(b.shape)}: they must have the same dimension d."
        )
    return a, b


def _samples(value: Tensor, name: str, fewest: int) -> Tensor:
    """Checked samples with shape (n, d), on the CPU in float64."""
    tensor = torch.as_tensor(value).detach().cpu().double()
    if tensor.ndim != 2 or tensor.shape[1] == 0:
        raise InputError(f"{name} has shape {tuple(tensor.shape)}: it must be (n, d) with d at least 1.")
    if len(tensor) < fewest:
        raise InputError(f"{name} has {len(tensor)} rows: at least {fewest} are needed.")
    bad = int((~tensor.isfinite()).any(dim=1).sum())
    if bad:
        raise InputError(f"{name} has {bad} rows with NaN or infinity out of {len(tensor)}: all must be finite.")
    return tensor
