"""A few numbers that say most of what a window holds: depth, mid-time, duration, slopes, noise.

A network can find them by itself, at the price of many training steps; given them, the linear guess of the base (see
`reprior.networks.mlp`) already knows the midpoint, the noise and most of the radius ratio, and the network learns the rest.

With d = 1 - x where a point is present, d' its running mean over three points, D the mean of the five largest d' and
m_q = (points with d' > q D),

| name | what it is |
|---|---|
| depth | arsinh(D / 0.001) |
| area | arsinh(mean of d over all points / 0.0001) |
| middle | the mean time of m_0.5, in half-widths |
| full | log(1 + the number of points in m_0.5) |
| slopes | log(1 + the number in m_0.2) - log(1 + the number in m_0.8) |
| bottom | the mean of d over m_0.8, less the mean over m_0.8 within half of the middle's spread, over D: limb darkening |
| spread | the standard deviation of the times in m_0.5, in half-widths |
| noise | log of the median size of differences of neighbours, over 0.6745 sqrt(2) 0.001: of a Gaussian, log(sigma / 0.001) |

Each uses the points that are present alone. They help the network, which still sees the whole series.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["SUMMARIES", "masked_mean", "running", "summaries"]

SUMMARIES = ("depth", "area", "middle", "full", "slopes", "bottom", "spread", "noise")
NOISE = 1e-3  # relative flux: the prior's mean noise of a point


def summaries(x: Tensor) -> Tensor:
    """The summaries of windows.

    Arguments:
        x: relative flux, NaN where missing, with shape (*, points).

    Returns: with shape (*, 8).
    """
    here = (~torch.isnan(x)).to(x.dtype)
    d = (1 - x).nan_to_num(0.0) * here
    time = torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype, device=x.device)
    smooth = running(d) / running(here).clamp(min=1 / 3) * here
    depth = smooth.topk(5, dim=-1).values.mean(-1, keepdim=True).clamp(min=NOISE / 2)
    at = {q: (smooth > q * depth).to(x) * here for q in (0.2, 0.5, 0.8)}
    count = {q: mask.sum(-1) for q, mask in at.items()}
    middle = masked_mean(time.expand_as(x), at[0.5])
    spread = masked_mean((time - middle.unsqueeze(-1)) ** 2, at[0.5]).sqrt()
    inner = at[0.8] * ((time - middle.unsqueeze(-1)).abs() < spread.unsqueeze(-1) / 2)
    bottom = (masked_mean(d, at[0.8]) - masked_mean(d, inner)) / depth[..., 0]
    size = x.diff(dim=-1).abs().nanmedian(-1).values.nan_to_num(NOISE)
    noise = (size / (0.6745 * 2**0.5)).clamp(min=NOISE / 100)
    columns = (
        torch.asinh(depth[..., 0] / NOISE),
        torch.asinh(10 * masked_mean(d, here) / NOISE),
        middle,
        count[0.5].log1p(),
        count[0.2].log1p() - count[0.8].log1p(),
        bottom,
        spread,
        (noise / NOISE).log(),
    )
    return torch.stack(columns, dim=-1)


def running(values: Tensor) -> Tensor:
    """The mean over each point and its two neighbours, zeros beyond the ends, of values with shape (*, points)."""
    flat = values.reshape(-1, 1, values.shape[-1])
    return nn.functional.avg_pool1d(flat, 3, stride=1, padding=1).reshape(values.shape)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of the values, with shape (*, points), where the mask is 1; 0 where it nowhere is."""
    return (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)
