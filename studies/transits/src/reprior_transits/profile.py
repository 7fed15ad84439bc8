"""The profile of a dip: what a window looks like once it is centred, scaled to its duration and folded in time.

The light curve of a circular orbit is even in time about its midpoint t0, and the orbit and the radius ratio are in its
shape. A network that is given the series alone has to find the midpoint, below a bin, before it sees a shape. Here that
is done once, for each window by itself: with d = 1 - x where a point is present, times t in half-widths, t' the midpoint
and T' half of the duration,

    p(u_j) = sum over points of K(|t - t'| / T' - u_j) d / sum of K(|t - t'| / T' - u_j),      u_j from 0 to 1.6,

with K a Gaussian as wide as 0.6 steps of u, or half a bin where that is more. T' is half of the points deeper than half of the
depth. t' starts at the centroid of the dip; two Gauss-Newton steps then fit p itself, as a function of t - t', to the points.

The entries are p(u_j) / D (28), arsinh(D / 0.001), t', log T', and how many points there are in every fourth p (7, at most
3: gaps), with D the mean of d within T' / 2. Windows without a dip give noise; like the summaries, these numbers help the
network, which still sees the whole series.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reprior_transits.summaries import NOISE, masked_mean, running

__all__ = ["PROFILE", "profile"]

OFFSETS, FAR = 28, 1.6  # u_j, in halves of the duration
STEP = FAR / (OFFSETS - 1)
COUNTS = 4  # every fourth p has its number of points
PROFILE = OFFSETS + 3 + len(range(0, OFFSETS, COUNTS))  # the number of entries
ROWS = 2_000  # windows at once, which bounds the memory


def profile(x: Tensor) -> Tensor:
    """The profiles of windows.

    Arguments:
        x: relative flux, NaN where missing, with shape (*, points).

    Returns: with shape (*, PROFILE).
    """
    flat = x.reshape(-1, x.shape[-1])
    return torch.cat([_rows(part) for part in flat.split(ROWS)]).reshape(*x.shape[:-1], PROFILE)


def _rows(x: Tensor) -> Tensor:
    here = (~torch.isnan(x)).to(x.dtype)
    d = (1 - x).nan_to_num(0.0) * here
    t = torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype, device=x.device)
    middle, half = _place(d, here, t)
    for _ in range(2):
        p, _ = _folded(d, here, t, middle, half)
        middle = middle + half * _shift(p, d, here, (t - middle) / half)
    p, count = _folded(d, here, t, middle, half)
    core = here * ((t - middle).abs() < half / 2)
    depth = masked_mean(d, core).unsqueeze(-1).clamp(min=NOISE / 2)
    count = count[:, ::COUNTS].clamp(max=3.0)
    return torch.cat([p / depth, torch.asinh(depth / NOISE), middle, half.log(), count], dim=-1)


def _place(d: Tensor, here: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """The centroid of the dip and half of its duration, in half-widths, each with shape (n, 1)."""
    points = d.shape[-1]
    smooth = running(d) / running(here).clamp(min=1 / 3) * here
    depth = smooth.topk(5, dim=-1).values.mean(-1, keepdim=True).clamp(min=NOISE / 2)
    deep = (smooth > depth / 2).to(d) * here
    middle = masked_mean(t.expand_as(d), deep).unsqueeze(-1)
    for _ in range(3):  # points far from the rest are noise
        spread = masked_mean((t - middle) ** 2, deep).sqrt().unsqueeze(-1).clamp(min=1 / points)
        near = ((t - middle).abs() < 2.2 * spread).to(d) * here
        deep = deep * near
        weight = near * (smooth / depth).clamp(0, 1)
        middle = (weight * t).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True).clamp(min=1e-3)
    return middle, (deep.sum(-1, keepdim=True) / points).clamp(min=1.5 / points)


def _folded(d: Tensor, here: Tensor, t: Tensor, middle: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """p(u_j), and the sum of K that it is divided by, each with shape (n, OFFSETS)."""
    u = ((t - middle).abs() / half).unsqueeze(-1)
    bin_width = 2 / d.shape[-1] / half
    width = (bin_width / 2).clamp(min=0.6 * STEP).unsqueeze(-1)
    grid = STEP * torch.arange(OFFSETS, dtype=d.dtype, device=d.device)
    kernel = torch.exp(-(((u - grid) / width) ** 2) / 2) * here.unsqueeze(-1)
    total = kernel.sum(1)
    return (kernel * d.unsqueeze(-1)).sum(1) / total.clamp(min=1e-2), total


def _shift(p: Tensor, d: Tensor, here: Tensor, u: Tensor) -> Tensor:
    """A Gauss-Newton step of the midpoint, in halves of the duration, at most 0.1, with shape (n, 1)."""
    position = (u.abs() / STEP).clamp(max=OFFSETS - 1.001)
    i = position.long()

    def at(values: Tensor) -> Tensor:
        return torch.lerp(values.gather(1, i), values.gather(1, i + 1), position - i)

    inside = here * (u.abs() < FAR)
    slope = at(torch.gradient(p, spacing=STEP, dim=1)[0]) * u.sign() * inside
    residual = (d - at(p)) * inside
    step = -(slope * residual).sum(1, keepdim=True) / (slope.square().sum(1, keepdim=True) + NOISE**2)
    return step.clamp(-0.1, 0.1)
