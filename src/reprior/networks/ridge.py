"""A linear regression that is cross-validated, for any number of rows and columns.

Ridge regression of y on n rows of k columns, both centred, with penalty l on the slope: with C = X'X / n = V diag(e) V' and
the scores T = X V,

    fit_l = T diag(1 / (n (e + l))) T' y = H_l y

A fit without row i would miss y_i by exactly (y_i - fit_i) / (1 - H_ii), where H_ii includes 1 / n for the constant. No
second fit is needed (Allen 1974, Technometrics 16, 125; Golub, Heath and Wahba 1979, Technometrics 21, 215). Each column of
y gets the penalty with the smallest mean square of these leave-one-out residuals. The infinite penalty, whose fit is the
mean of y, is among those tried. The residual variance is thus always that of rows which the fit has not seen, however many
columns there are.

With fewer rows than columns, T comes from the eigenvectors of XX', so the cost is set by the smaller of n and k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Ridge", "fit_ridge", "steady_axes"]

LEAST = (
    1e-6  # smallest penalty, for columns of about unit variance: the fit stays stable where columns repeat each other
)
PENALTIES = 40  # penalties tried: neighbours differ by about a factor of two, over which the loss hardly changes
CELLS = 4_000_000  # numbers in double precision held at once beside the eigenvectors: 32 MB
SURE = 1e-9  # smallest 1 - H_ii: keeps the residual finite for a row that determines its own fit
HALF = 1_000  # rows in each half of x by which `steady_axes` judges axes: an eigendecomposition of a second or less


@dataclass(frozen=True)
class Ridge:
    """A regression y = slope x + offset of p variables on k columns.

    Attributes:
        slope: with shape (p, k).
        offset: with shape (p,).
        left_out: leave-one-out residuals: y minus its prediction by the regression without that row, with shape (n, p).
        penalty: the penalty of each variable, with shape (p,); infinite where x has no information on it.
        axes: principal axes of x, the largest first, with shape (r, k).
        spread: the standard deviations of x along them, with shape (r,).
    """

    slope: Tensor
    offset: Tensor
    left_out: Tensor
    penalty: Tensor
    axes: Tensor
    spread: Tensor


@dataclass(frozen=True)
class _Tall:
    """The principal axes of rows of k columns, k <= n, from X'X.

    Attributes:
        blocks: gives slices of rows and the centred columns there.
        values: the eigenvalues e of X'X / n in ascending order, with shape (k,).
        vectors: V, with shape (k, k).
        along: V' X'y / n, with shape (k, p).
    """

    blocks: Callable[[], Iterator[tuple[slice, Tensor]]]
    values: Tensor
    vectors: Tensor
    along: Tensor

    @classmethod
    def of(cls, blocks: Callable[[], Iterator[tuple[slice, Tensor]]], size: int, y: Tensor) -> _Tall:
        n = len(y)
        gram = torch.zeros(size, size, dtype=torch.float64, device=y.device)
        for _, block in blocks():
            gram.addmm_(block.T, block)
        values, vectors = torch.linalg.eigh(gram / n)
        along = torch.zeros(size, y.shape[1], dtype=torch.float64, device=y.device)
        for at, block in blocks():
            along += (block @ vectors).T @ y[at] / n
        return cls(blocks, values.clamp(min=0), vectors, along)

    def scores(self) -> Iterator[tuple[slice, Tensor]]:
        """Slices of rows, and T = X V there."""
        for at, block in self.blocks():
            yield at, block @ self.vectors

    def back(self, coefficients: Tensor, axes: int) -> tuple[Tensor, Tensor]:
        """The slope (p, k) of coefficients (k, p) of the scores, and the leading axes in ascending order, (r, k)."""
        return (self.vectors @ coefficients).T, self.vectors[:, len(self.values) - axes :].T


@dataclass(frozen=True)
class _Wide:
    """The principal axes of more columns than rows, from XX'.

    Attributes:
        x: the columns, with shape (n, k), not centred.
        mean: their means, with shape (k,).
        values: the n largest eigenvalues of X'X / n in ascending order, with shape (n,).
        vectors: the eigenvectors U of XX', with shape (n, n): X V = U sqrt(n e).
        along: V' X'y / n, with shape (n, p).
    """

    x: Tensor
    mean: Tensor
    values: Tensor
    vectors: Tensor
    along: Tensor

    @classmethod
    def of(cls, x: Tensor, mean: Tensor, y: Tensor) -> _Wide:
        n = len(y)
        gram = torch.zeros(n, n, dtype=torch.float64, device=y.device)
        for block in _columns(x, mean):
            gram.addmm_(block, block.T)
        values, vectors = torch.linalg.eigh(gram / n)
        values = values.clamp(min=0)
        return cls(x, mean, values, vectors, (values / n).sqrt().unsqueeze(1) * (vectors.T @ y))

    def scores(self) -> Iterator[tuple[slice, Tensor]]:
        n = len(self.vectors)
        for i in range(0, n, n // 4 + 1):
            at = slice(i, i + n // 4 + 1)
            yield at, self.vectors[at] * (n * self.values).sqrt()

    def back(self, coefficients: Tensor, axes: int) -> tuple[Tensor, Tensor]:
        n, first = len(self.vectors), len(self.values) - axes
        size = (n * self.values).clamp(min=1e-300).sqrt()
        of_slope = (coefficients / size.unsqueeze(1)).T @ self.vectors.T  # (p, n)
        of_axes = (self.vectors[:, first:] / size[first:]).T
        both = torch.cat([of_slope, of_axes])
        found = torch.cat([both @ block for block in _columns(self.x, self.mean)], 1)
        return found[: len(of_slope)], found[len(of_slope) :]


def _columns(x: Tensor, mean: Tensor) -> Iterator[Tensor]:
    """Some centred columns at a time, in double precision."""
    width = max(1, CELLS // len(x))
    for j in range(0, x.shape[1], width):
        yield x[:, j : j + width].double() - mean[j : j + width]


@torch.no_grad()
def fit_ridge(x: Tensor, y: Tensor, axes: int = 0, summary: Callable[[Tensor], Tensor] | None = None) -> Ridge:
    """The regression with the best penalties.

    Arguments:
        x: rows, with shape (n, m).
        y: what is regressed, with shape (n, p).
        axes: the largest number r of principal axes to return.
        summary: the columns, (n, m) -> (n, k); x itself if None.
    """
    of = summary or (lambda rows: rows)
    n, size = len(x), of(x[:1]).shape[1]
    rows = max(1, CELLS // size)

    def raw() -> Iterator[tuple[slice, Tensor]]:
        for i in range(0, n, rows):
            yield slice(i, i + rows), of(x[i : i + rows]).double()

    mean, centre = torch.stack([block.sum(0) for _, block in raw()]).sum(0) / n, y.double().mean(0)

    def blocks() -> Iterator[tuple[slice, Tensor]]:
        for at, block in raw():
            yield at, block - mean

    gap = y.double() - centre
    found = _Tall.of(blocks, size, gap) if size <= n else _Wide.of(of(x), mean, gap)
    e, along = found.values, found.along
    top = float(e[-1].clamp(min=LEAST)) * max(1.0, size / n)
    penalties = torch.logspace(math.log10(LEAST), math.log10(1e4 * top), PENALTIES - 1, dtype=torch.float64)
    penalties = torch.cat([penalties, torch.tensor([torch.inf], dtype=torch.float64)]).to(e.device)
    shrunk = 1 / (e.unsqueeze(1) + penalties)  # (k, penalties); zero for the infinite one
    shrunk[e <= 1e-12 * e[-1].clamp(min=1e-300)] = 0
    missed = torch.zeros(PENALTIES, y.shape[1], dtype=torch.float64, device=e.device)
    for at, t in found.scores():
        stay = (1 - 1 / n - t.square() @ shrunk / n).clamp(min=SURE)  # 1 - H_ii, with shape (rows, penalties)
        for i in range(y.shape[1]):
            missed[:, i] += ((gap[at, i : i + 1] - t @ (shrunk * along[:, i : i + 1])) / stay).square().sum(0)
    best = missed.argmin(0)
    chosen = shrunk[:, best]  # (k, p)
    left_out = torch.empty_like(gap)
    for at, t in found.scores():
        left_out[at] = (gap[at] - t @ (chosen * along)) / (1 - 1 / n - t.square() @ chosen / n).clamp(min=SURE)
    r = min(axes, int((e > 1e-9 * e[-1]).sum()))
    slope, lead = found.back(chosen * along, r)
    spread = e[len(e) - r :].flip(0).sqrt()
    return Ridge(slope, centre - slope @ mean, left_out, penalties[best], lead.flip(0), spread)


@torch.no_grad()
def steady_axes(x: Tensor, most: int, fraction: float = 0.5) -> int:
    """The number of leading principal axes that are a property of x and not of the particular rows.

    One half of the rows gives the axes. An axis counts if the variance of the other half along it is at least a given
    fraction of that of the first half.

    Arguments:
        x: rows in random order, with shape (n, m).
        most: the largest number to return.
        fraction: this fraction.
    """
    half = min(len(x) // 2, HALF)
    if half < 2:
        return 0
    one, two = x[:half] - x[:half].mean(0), x[half : 2 * half] - x[half : 2 * half].mean(0)
    e, u = torch.linalg.eigh((one @ one.T).double())
    e, u = e.flip(0)[:most], u.flip(1)[:, :most]
    # n times the variance of the other half along the axes of the first.
    across = ((two @ one.T).double() @ u / e.clamp(min=1e-300).sqrt()).square().sum(0)
    unsteady = ((across < fraction * e) | (e <= 1e-9 * e[0])).nonzero()
    return len(e) if len(unsteady) == 0 else int(unsteady[0])
