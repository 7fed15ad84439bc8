"""A linear regression that is cross-validated, for any number of rows and columns.

Ridge regression of y on n rows of k columns, both centred, with penalty l on the slope: with C = X'X / n = V diag(e) V' and
the scores T = X V,

    fit_l = T diag(1 / (n (e + l))) T' y = H_l y

A row that was left out would have missed its y by (y_i - fit_i) / (1 - H_ii), the constant's 1 / n included in H_ii: exactly, with no
second fit (Allen 1974, Technometrics 16, 125; Golub, Heath and Wahba 1979, Technometrics 21, 215). The penalty of each column of y
makes the mean square of these as small as it gets; an infinite one, which leaves the mean of y, is among those tried. What the
regression leaves open is then told by rows that it has not seen, however many columns there are.

With fewer rows than columns, T comes from the eigenvectors of XX', so that the cost goes with the smaller of n and k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Ridge", "fit_ridge", "steady_axes"]

LEAST = 1e-6  # penalty, of columns of about unit variance: keeps columns that repeat each other tame
PENALTIES = 40
CELLS = 4_000_000  # numbers in double precision that are held at once, beside the eigenvectors
SURE = 1e-9  # of 1 - H_ii
FLAT = 1e-12  # of the largest variance, at which an axis has none
HALF = 1_000  # rows of each half that axes are compared on


@dataclass(frozen=True)
class Ridge:
    """A regression y = slope x + offset of p variables on k columns.

    Attributes:
        slope: with shape (p, k).
        offset: with shape (p,).
        left: y minus what the regression without that row says of it, with shape (n, p).
        penalty: the penalty of each variable, with shape (p,); infinite where x tells nothing of it.
        axes: principal axes of x, the largest first, with shape (r, k).
        spread: the standard deviations of x along them, with shape (r,).
    """

    slope: Tensor
    offset: Tensor
    left: Tensor
    penalty: Tensor
    axes: Tensor
    spread: Tensor


@torch.no_grad()
def fit_ridge(x: Tensor, y: Tensor, axes: int = 0, summary: Callable[[Tensor], Tensor] = lambda x: x) -> Ridge:
    """The regression with the best penalties.

    Arguments:
        x: rows, with shape (n, m).
        y: what is regressed, with shape (n, p).
        axes: the number r of principal axes to return, at most.
        summary: the columns, (n, m) -> (n, k), x itself by default.
    """
    n, size, p = len(x), summary(x[:1]).shape[1], y.shape[1]
    centre = y.double().mean(0)
    gap = y.double() - centre
    spectrum = (_Tall if size <= n else _Wide)(x, size, summary)
    e = spectrum.variances
    told = torch.zeros(len(e), p, dtype=torch.float64, device=x.device)  # T'y / n
    for rows, scores in spectrum.scores():
        told += scores.T @ gap[rows] / n

    top = max(float(e[-1]), LEAST) * max(1.0, size / n)
    finite = torch.logspace(math.log10(LEAST), math.log10(1e4 * top), PENALTIES - 1, dtype=torch.float64)
    penalties = torch.cat([finite, torch.tensor([torch.inf], dtype=torch.float64)]).to(x.device)
    shrunk = (1 / (e.unsqueeze(1) + penalties)).masked_fill((e <= FLAT * e[-1]).unsqueeze(1), 0)  # (k, penalties)
    missed = torch.zeros(PENALTIES, p, dtype=torch.float64, device=x.device)
    for rows, scores in spectrum.scores():
        apart = (1 - 1 / n - scores.square() @ shrunk / n).clamp(min=SURE)  # 1 - H_ii for each penalty
        for i in range(p):
            fit = scores @ (shrunk * told[:, i : i + 1])
            missed[:, i] += ((gap[rows, i : i + 1] - fit) / apart).square().sum(0)
    best = missed.argmin(0)

    chosen = shrunk[:, best]  # (k, p)
    left = torch.empty_like(gap)
    for rows, scores in spectrum.scores():
        apart = (1 - 1 / n - scores.square() @ chosen / n).clamp(min=SURE)
        left[rows] = (gap[rows] - scores @ (chosen * told)) / apart
    r = min(axes, int((e > FLAT * e[-1]).sum()))
    lead = torch.zeros(len(e), r, dtype=torch.float64, device=x.device)
    lead[range(len(e) - 1, len(e) - 1 - r, -1), range(r)] = 1.0
    slope, found = spectrum.columns(torch.cat([chosen * told, lead], 1)).split([p, r])
    return Ridge(slope, centre - slope @ spectrum.mean, left, penalties[best], found, e[len(e) - r :].flip(0).sqrt())


class _Tall:
    """Variances and scores of x along its principal axes, the smallest first, from the covariance of its columns."""

    def __init__(self, x: Tensor, size: int, summary: Callable[[Tensor], Tensor]):
        self.x, self.summary, self.at_once = x, summary, max(1, CELLS // size)
        self.mean = sum(block.sum(0) for _, block in self._blocks()) / len(x)
        cov = torch.zeros(size, size, dtype=torch.float64, device=x.device)
        for _, block in self._blocks():
            block -= self.mean
            cov.addmm_(block.T, block)
        variances, self.axes = torch.linalg.eigh(cov / len(x))
        self.variances = variances.clamp(min=0)

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        for i in range(0, len(self.x), self.at_once):
            yield slice(i, i + self.at_once), self.summary(self.x[i : i + self.at_once]).to(torch.float64, copy=True)

    def scores(self) -> Iterator[tuple[slice, Tensor]]:
        for rows, block in self._blocks():
            yield rows, (block - self.mean) @ self.axes

    def columns(self, along: Tensor) -> Tensor:
        """Vectors along the axes, with shape (k, p), in the columns of x: shape (p, k)."""
        return (self.axes @ along).T


class _Wide:
    """The same for fewer rows than columns, from the products of its rows."""

    def __init__(self, x: Tensor, size: int, summary: Callable[[Tensor], Tensor]):
        self.x, n = summary(x), len(x)
        self.at_once = max(1, CELLS // n)
        self.mean = torch.cat([part.double().mean(0) for part in self.x.split(self.at_once, 1)])
        gram = torch.zeros(n, n, dtype=torch.float64, device=x.device)
        for _, block in self._blocks():
            gram.addmm_(block, block.T)
        variances, self.rows = torch.linalg.eigh(gram / n)
        self.variances = variances.clamp(min=0)

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        for j in range(0, self.x.shape[1], self.at_once):
            columns = slice(j, j + self.at_once)
            yield columns, self.x[:, columns].double() - self.mean[columns]

    def scores(self) -> Iterator[tuple[slice, Tensor]]:
        n = len(self.x)
        for i in range(0, n, n // 4 + 1):
            rows = slice(i, i + n // 4 + 1)
            yield rows, self.rows[rows] * (n * self.variances).sqrt()

    def columns(self, along: Tensor) -> Tensor:
        """Vectors along the axes, with shape (n, p), in the columns of x: shape (p, k)."""
        flat = (self.variances <= FLAT * self.variances[-1]).unsqueeze(1)
        scale = (len(self.x) * self.variances).sqrt().unsqueeze(1)
        told = (self.rows @ (along / scale).masked_fill(flat, 0)).T
        return torch.cat([told @ block for _, block in self._blocks()], 1)


@torch.no_grad()
def steady_axes(x: Tensor, most: int, share: float = 0.5) -> int:
    """How many leading principal axes are of x, not of these rows: half of the rows give axes, along which the other half
    varies by this share of what the first does, at least.

    Arguments:
        x: rows in random order, with shape (n, m).
        most: the most that are asked for.
    """
    half = min(len(x) // 2, HALF)
    if half < 2:
        return 0
    one, two = x[:half] - x[:half].mean(0), x[half : 2 * half] - x[half : 2 * half].mean(0)
    e, u = torch.linalg.eigh((one @ one.T).double())
    e, u = e.flip(0)[:most], u.flip(1)[:, :most]
    across = (
        ((two @ one.T).double() @ u / e.clamp(min=1e-300).sqrt()).square().sum(0)
    )  # of the other half along the axes
    unsteady = ((across < share * e) | (e <= 1e-9 * e[0])).nonzero()
    return len(e) if len(unsteady) == 0 else int(unsteady[0])
