"""One-dimensional functions by straight pieces, with knots where they bend, jump or run away.

An interval is halved as long as its middle is off the straight line by more than OFF, or only one of its ends has a value: a
kink or a cut is found to one part in 10^8, and an infinity at an edge gets knots at all scales.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Knots", "find_knots"]

EVEN = 513  # knots to begin with
OFF = 0.03
ROUNDS = 22


@dataclass(frozen=True)
class Knots:
    """d functions.

    Attributes:
        place: rising knots, with shape (d, N), repeated at the end where a function has fewer.
        value: the function there, with shape (d, N).
    """

    place: Tensor
    value: Tensor

    def __call__(self, t: Tensor) -> Tensor:
        """The functions at t, with shape (m, d): shape (m, d); -inf beyond the knots."""
        point = t.T.contiguous()
        above = torch.searchsorted(self.place, point).clamp(1, self.place.shape[1] - 1)
        x0, x1 = self.place.gather(1, above - 1), self.place.gather(1, above)
        f0, f1 = self.value.gather(1, above - 1), self.value.gather(1, above)
        part = ((point - x0) / (x1 - x0).clamp(min=1e-300)).clamp(0, 1)
        both = torch.isfinite(f0) & torch.isfinite(f1)
        inside = both & (point >= self.place[:, :1]) & (point <= self.place[:, -1:])
        value = torch.where(inside, f0 + part * (torch.where(both, f1, 0.0) - torch.where(both, f0, 0.0)), -torch.inf)
        return value.T


def find_knots(f: Callable[[int, Tensor], Tensor], low: Tensor, high: Tensor) -> Knots:
    """The knots of d functions.

    Arguments:
        f: (i, t) to f_i(t), with the shape (N,) of t, in double precision.
        low: where each begins, with shape (d,).
        high: where each ends, with shape (d,).
    """
    found = [_knots(lambda t, i=i: f(i, t), float(a), float(b)) for i, (a, b) in enumerate(zip(low, high, strict=True))]
    most = max(len(x) for x, _ in found)
    place = torch.stack([torch.cat([x, x[-1].expand(most - len(x))]) for x, _ in found])
    value = torch.stack([torch.cat([y, y[-1].expand(most - len(y))]) for _, y in found])
    return Knots(place, value)


def _knots(f: Callable[[Tensor], Tensor], low: float, high: float) -> tuple[Tensor, Tensor]:
    x = torch.linspace(low, high, EVEN, dtype=torch.float64)
    y = f(x)
    xs, ys = [x], [y]
    left, right = (x[:-1], y[:-1]), (x[1:], y[1:])
    for _ in range(ROUNDS):
        x = (left[0] + right[0]) / 2
        if len(x) == 0:
            break
        y = f(x)
        xs.append(x)
        ys.append(y)
        fa, fb, fm = (torch.isfinite(v) for v in (left[1], right[1], y))
        straight = (y - (left[1] + right[1]) / 2).abs() <= OFF
        done = torch.where(fa & fb & fm, straight, ~(fa | fb | fm))
        left, right = (
            (torch.cat([left[0], x])[~done.repeat(2)], torch.cat([left[1], y])[~done.repeat(2)]),
            (torch.cat([x, right[0]])[~done.repeat(2)], torch.cat([y, right[1]])[~done.repeat(2)]),
        )
    x, y = torch.cat(xs), torch.cat(ys)
    order = x.argsort()
    return x[order], y[order]
