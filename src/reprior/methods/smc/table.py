"""Tables of a one-dimensional function smoothed by Gaussian noise of any width.

For each of d functions f_i = log r_i on a grid of N cells, at widths sd = 4 D 2^(j/2) with D the width of a cell,

    log psi_i(u, sd) = log integral of r_i(t) N(t; u, sd^2) dt

with its first and second derivative in u. Cells are merged in pairs as sd doubles (r is averaged, so that a cut or an
infinity at an edge keeps its mass), so a width is always resolved by four to six cells. Everything is done in the log domain:
nothing is lost where r spans hundreds of orders of magnitude. Where no mass of r lies within ten widths, log psi goes on
as the Gaussian tail that it has there, -(u - edge)^2 / (2 sd^2), so that a particle is pulled back from anywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Tables", "build_tables"]

CELLS = 4.0  # in the smallest width of a level
DENSE = 1_024  # cells up to which every cell sees every other
HALO = 64  # cells on either side that a block sees, above that: more than ten widths
BLOCK = 256
FEWEST = 32  # cells of the coarsest level


@dataclass(frozen=True)
class Tables:
    """log psi and its derivatives for d functions.

    Attributes:
        low: the left end of the grid of each function, with shape (d,).
        high: the right end, with shape (d,).
        rows: (value, slope, curvature) of every node, all levels one after the other, with shape (rows, 3).
        start: where the rows of a level begin, with shape (levels,); within it, function i begins at i times its nodes.
        nodes: the nodes of a level, with shape (levels,).
        finest: cells of the finest level.
    """

    low: Tensor
    high: Tensor
    rows: Tensor
    start: Tensor
    nodes: Tensor
    finest: int

    def __call__(self, u: Tensor, sd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log psi, its slope and its curvature, each with the shape of u.

        Arguments:
            u: points, with shape (n, K, d), in the precision that is wanted.
            sd: widths, with shape (K, d).
        """
        size = (self.high - self.low) / self.finest
        level = (2 * torch.log2(sd.double() / (CELLS * size))).clamp(0, len(self.nodes) - 1)
        below = level.floor().long().clamp(max=len(self.nodes) - 2)
        part = (2 - 2.0 ** (1 - (level - below))).to(u)  # linear in 1 / sd^2, as the Gaussian tails are
        offset = (u - self.low.to(u)) / (self.high - self.low).to(u)
        index = torch.arange(u.shape[-1])
        total: list[Tensor] = []
        for step, share in ((0, 1 - part), (1, part)):
            nodes = self.nodes[below + step]  # (K, d)
            width = ((self.high - self.low) / nodes).to(u)
            place = offset * nodes - 0.5
            node = torch.minimum(place.round().clamp(min=0), nodes - 1)
            gap = (place - node) * width
            row = self.rows[(self.start[below + step] + index * nodes) + node.long()]
            value, slope, curve = row[..., 0], row[..., 1], row[..., 2]
            # Beyond the grid, what the curvature would make of a far point is not believed: it only falls.
            bend = torch.where(gap.abs() > width, curve.clamp(max=0.0), curve) * gap
            here = (value + gap * (slope + bend / 2), slope + bend, curve)
            total = [share * one + (total[i] if total else 0) for i, one in enumerate(here)]
        return total[0], total[1], total[2]


def build_tables(f: Tensor, low: Tensor, high: Tensor) -> Tables:
    """The tables of d functions.

    Arguments:
        f: log r_i in the middle of each of N cells (a power of two), with shape (d, N), in double precision.
        low: the left end of the first cell, with shape (d,).
        high: the right end of the last cell, with shape (d,).
    """
    finest = f.shape[1]
    rows, start, nodes, total = [], [], [], 0
    while f.shape[1] >= FEWEST:
        cells = f.shape[1]
        for width in (CELLS, CELLS * math.sqrt(2)):
            value = _extended(_smooth(f, width), width)
            size = ((high - low) / cells).unsqueeze(1)
            slope, curve = _derivatives(value, size)
            rows.append(torch.stack([value, slope, curve], -1).reshape(-1, 3))
            start.append(total)
            nodes.append(cells)
            total += len(rows[-1])
        f = torch.logaddexp(f[:, 0::2], f[:, 1::2]) - math.log(2)
    return Tables(low, high, torch.cat(rows).float(), torch.tensor(start), torch.tensor(nodes), finest)


def _smooth(f: Tensor, width: float) -> Tensor:
    """log of exp(f) smoothed by a Gaussian of a width in cells; f has shape (d, N)."""
    d, cells = f.shape
    if cells <= DENSE:
        place = torch.arange(cells, dtype=f.dtype)
        kernel = -((place.unsqueeze(1) - place) ** 2) / (2 * width**2) - math.log(width * math.sqrt(2 * math.pi))
        return torch.stack([torch.logsumexp(row + kernel, 1) for row in f])
    size = BLOCK + 2 * HALO
    padded = torch.nn.functional.pad(f, (HALO, HALO), value=-torch.inf)
    blocks = padded.unfold(1, size, BLOCK)  # (d, N / BLOCK, size)
    top = blocks.amax(-1, keepdim=True)
    top = torch.where(torch.isfinite(top), top, torch.zeros_like(top))
    offset = torch.arange(size, dtype=f.dtype).unsqueeze(1) - HALO - torch.arange(BLOCK, dtype=f.dtype)
    kernel = torch.exp(-(offset**2) / (2 * width**2)) / (width * math.sqrt(2 * math.pi))
    return (torch.log((blocks - top).exp() @ kernel) + top).reshape(d, cells)


def _extended(value: Tensor, width: float) -> Tensor:
    """Where there is no mass near (-inf), the Gaussian tails of what lies to the left and to the right."""
    if bool(torch.isfinite(value).all()):
        return value
    left = _tail(value, width)
    right = _tail(value.flip(1), width).flip(1)
    return torch.where(torch.isfinite(value), value, torch.logaddexp(left, right))


def _tail(value: Tensor, width: float) -> Tensor:
    """The tail to the right of the last cells with a value, as a Gaussian of that width (in cells) falls."""
    known, place = torch.isfinite(value), torch.arange(value.shape[1])
    last = torch.where(known, place, -torch.ones_like(place)).cummax(1).values
    at = last.clamp(min=1)
    before = value.gather(1, at - 1)
    # One cell before, if that has no value either, the slope is that of a lone cell.
    slope = torch.where(torch.isfinite(before), value.gather(1, at) - before, torch.zeros_like(before))
    gap = (place - at).clamp(min=0).to(value)
    tail = value.gather(1, at) + gap * slope.clamp(max=0.0) - gap**2 / (2 * width**2)
    return torch.where(last >= 1, tail, -torch.inf)


def _derivatives(value: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and curvature by differences of neighbours; at the ends, those of the cell next to it."""
    slope, curve = torch.empty_like(value), torch.empty_like(value)
    slope[:, 1:-1] = (value[:, 2:] - value[:, :-2]) / 2
    curve[:, 1:-1] = value[:, 2:] + value[:, :-2] - 2 * value[:, 1:-1]
    curve[:, 0], curve[:, -1] = curve[:, 1], curve[:, -2]
    slope[:, 0], slope[:, -1] = value[:, 1] - value[:, 0], value[:, -1] - value[:, -2]
    return slope / size, curve / size**2
