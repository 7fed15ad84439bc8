"""What a weighted pool of draws says: its spread, the error of its mean, members that stand for it; and how curved log r is there."""

from __future__ import annotations

import torch
from torch import Tensor

from reprior.change import PriorChange
from reprior.quadratic import Quadratic

__all__ = ["curvature", "curvatures", "mean_error", "spread_of", "typical_members"]


def spread_of(pool: Tensor, log_w: Tensor) -> Tensor:
    """The weighted standard deviation of a pool, with shape (D,)."""
    w = torch.softmax(log_w, 0).to(pool).unsqueeze(-1)
    mean = (w * pool).sum(0)
    return (w * (pool - mean) ** 2).sum(0).sqrt().clamp(min=1e-4)


def mean_error(pool: Tensor, log_w: Tensor) -> Tensor:
    """The standard error of the weighted mean of a pool, with shape (D,)."""
    w = torch.softmax(log_w, 0).to(pool).unsqueeze(-1)
    return (w * (pool - (w * pool).sum(0))).square().sum(0).sqrt()


def typical_members(log_w: Tensor, n: int) -> Tensor:
    """n members of a pool, evenly spread over its weights."""
    total = torch.softmax(log_w.double(), 0).cumsum(0)
    return torch.searchsorted(total, (torch.arange(n, dtype=torch.float64) + 0.5) / n).clamp(max=len(log_w) - 1)


def curvature(change: PriorChange, quadratic: Quadratic, theta: Tensor) -> float:
    """The largest |eigenvalue| of the Hessian of log r that is typical: the median over some of the draws.

    Arguments:
        theta: standardised draws, with shape (n, D).
    """
    return float(curvatures(change, quadratic, theta[:64]).median())


def curvatures(change: PriorChange, quadratic: Quadratic, theta: Tensor) -> Tensor:
    """The largest |eigenvalue| of the Hessian of log r at each of some draws, with shape (n, D): shape (n,)."""
    if quadratic.exact:
        return torch.linalg.eigvalsh(quadratic.L).abs().max().expand(len(theta))
    d = len(quadratic.h)
    with torch.enable_grad():
        z = theta[:, :d].detach().clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(change(z).sum(), z, create_graph=True)
        if not slope.requires_grad:  # log r is linear: no curvature
            return torch.zeros(len(z))
        rows = []
        for i in range(d):
            (row,) = torch.autograd.grad(slope[:, i].sum(), z, retain_graph=True, allow_unused=True)
            rows.append(torch.zeros_like(z) if row is None else row)
    hessian = torch.stack(rows, 1).nan_to_num(nan=0.0)
    return torch.linalg.eigvalsh((hessian + hessian.transpose(1, 2)) / 2).abs().amax(-1)
