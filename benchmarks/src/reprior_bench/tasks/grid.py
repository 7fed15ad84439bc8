"""A proposal for a 2-D density: a grid that closes in on it, interpolated linearly.

The log-density is evaluated on a grid of 64 x 64 points; the box shrinks to the points whose density is at
least exp(-400), then exp(-100), exp(-25), exp(-18) times the largest (generous at first, when a narrow ridge
lies between the points), until it no longer shrinks. The proposal g is the bilinear interpolant of the
density on 160 x 160 points in that box, each value mixed with a tenth of the largest among its neighbours, so
that jumps of the density (the edge of a uniform prior) are covered. Draws from g are exact: a cell by its
mass, then each coordinate by its inverse CDF. Their weights f/g, close to one, remove what interpolation
leaves, in `rejection_sample`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from reprior.errors import InputError
from reprior_bench.tasks.rejection import Proposal

__all__ = ["grid_proposal"]

_COARSE, _FINE = 64, 160
_DEPTHS = (400.0, 100.0, 25.0, *(18.0,) * 8)


def grid_proposal(log_f: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Proposal:
    """Proposes from the interpolant of f, with weights f/g.

    Arguments:
        log_f: the log-density up to a constant, from (n, 2) to (n,).
        low, high: a box that holds the mass of f, each with shape (2,).
    """
    first, second, log_values = _evaluate(log_f, *_close_in(log_f, low, high), _FINE)
    top = log_values.max()
    values = torch.exp(log_values - top)
    wide = torch.nn.functional.max_pool2d(values[None, None], 3, stride=1, padding=1)[0, 0]
    values = 0.9 * values + 0.1 * wide
    corners = torch.stack([values[:-1, :-1], values[:-1, 1:], values[1:, :-1], values[1:, 1:]]).flatten(1)
    cumulative = corners.sum(0).cumsum(0).numpy()
    step = torch.stack([first[1] - first[0], second[1] - second[0]])

    def propose(count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        u = torch.from_numpy(rng.random((2, count)))
        drawn = np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right")
        cell = torch.from_numpy(np.minimum(drawn, len(cumulative) - 1))
        c00, c01, c10, c11 = corners[:, cell]
        s = _linear(c00 + c01, c10 + c11, u[0])
        left, right = (1 - s) * c00 + s * c10, (1 - s) * c01 + s * c11
        t = _linear(left, right, u[1])
        row, column = cell // (_FINE - 1), cell % (_FINE - 1)
        theta = torch.stack([first[row] + s * step[0], second[column] + t * step[1]], dim=-1)
        return theta, log_f(theta) - top - torch.log((1 - t) * left + t * right)

    return propose


def _close_in(log_f: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The corners (2,), (2,) of a box that holds all but about exp(-18) of the mass."""
    for depth in _DEPTHS:
        log_values = _evaluate(log_f, low, high, _COARSE)[2]
        top = float(log_values.max())
        if top == -np.inf:
            raise InputError("no parameter that the prior allows gives this observation: its density is zero")
        inside = torch.nonzero(log_values > top - depth)
        lowest, highest = (inside.amin(0) - 1).clamp(min=0), (inside.amax(0) + 1).clamp(max=_COARSE - 1)
        step = (high - low) / (_COARSE - 1)
        low, high = low + step * lowest, low + step * highest
        if depth == _DEPTHS[-1] and bool((highest - lowest > 0.8 * _COARSE).all()):
            break
    return low, high


def _evaluate(
    log_f: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, points: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The two axes (points,) of a grid on a box, and log f on it (points, points)."""
    first, second = (torch.linspace(float(low[i]), float(high[i]), points, dtype=torch.float64) for i in (0, 1))
    return first, second, log_f(torch.cartesian_prod(first, second)).reshape(points, points)


def _linear(a: Tensor, b: Tensor, u: Tensor) -> Tensor:
    """The inverse CDF at u of a density on [0, 1] that runs linearly from a to b."""
    return u * (a + b) / (a + torch.sqrt(a**2 + u * (b**2 - a**2)))
