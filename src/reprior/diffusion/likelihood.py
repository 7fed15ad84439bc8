"""log p(theta | x) of a denoiser, through the probability-flow ODE.

With lambda = log s the flow is dz/dlambda = z - D(z, s), and the density changes along it by the divergence:

    log p_0(z_0) = log p_max(z_max) + integral of (D - tr dD/dz) dlambda  from log s_min to log s_max

z_max is Gaussian about the denoised mean with variance s_max^2 + v, v the (unit or smaller) variance of theta. The
trace is exact: one backward pass per parameter.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reprior.diffusion.denoiser import Denoiser

__all__ = ["flow", "log_density"]


def log_density(denoiser: Denoiser, theta: Tensor, steps: int = 32) -> Tensor:
    """log p(theta | x) in standardised units.

    Arguments:
        denoiser: the (guided) denoiser, with K bound observations.
        theta: standardised parameters, with shape (n, K, D).
        steps: Runge-Kutta steps in log s; each costs four evaluations and 4 D backward passes.

    Returns: the log-density, with shape (n, K).
    """
    low, high = math.log(denoiser.s_min), math.log(denoiser.s_max)
    grid = torch.linspace(low, high, steps + 1, dtype=torch.float64)
    z = theta
    change = torch.zeros(theta.shape[:-1], dtype=torch.float64, device=theta.device)
    for i in range(steps):  # fourth-order Runge-Kutta
        h, middle = float(grid[i + 1] - grid[i]), (grid[i] + grid[i + 1]) / 2
        v1, trace_1 = flow(denoiser, z, grid[i])
        v2, trace_2 = flow(denoiser, z + h / 2 * v1, middle)
        v3, trace_3 = flow(denoiser, z + h / 2 * v2, middle)
        v4, trace_4 = flow(denoiser, z + h * v3, grid[i + 1])
        z = z + h / 6 * (v1 + 2 * v2 + 2 * v3 + v4)
        change = change + h / 6 * (trace_1 + 2 * trace_2 + 2 * trace_3 + trace_4)
    s = denoiser.s_max
    # The denoised mean at zero, and the variance of theta from the denoiser's slope there: dD/dz = v / (v + s^2).
    velocity, trace = flow(denoiser, torch.zeros_like(theta[:1]), grid[-1])
    centre, slope = -velocity, 1 - trace / theta.shape[-1]
    v = (s**2 * slope.clamp(0, 0.5) / (1 - slope.clamp(0, 0.5))).clamp(0, 4)
    var = (s**2 + v).unsqueeze(-1)
    gauss = -((z - centre).double() ** 2 / var + var.log() + math.log(2 * math.pi)).sum(-1) / 2
    return (gauss + change).to(theta.dtype)


def flow(denoiser: Denoiser, z: Tensor, log_s: Tensor) -> tuple[Tensor, Tensor]:
    """dz/dlog s = z - D(z, s), and its divergence; z has shape (n, K, D), the results (n, K, D) and (n, K)."""
    s = log_s.exp().to(z)
    with torch.enable_grad():
        z = z.detach().requires_grad_(True)
        mean = denoiser.mean(z, s)
        trace = torch.zeros(z.shape[:-1], dtype=torch.float64, device=z.device)
        for i in range(z.shape[-1]):
            (row,) = torch.autograd.grad(mean[..., i].sum(), z, retain_graph=i + 1 < z.shape[-1])
            trace = trace + row[..., i].double()
    return (z - mean).detach(), z.shape[-1] - trace
