"""log p(theta | x) of a denoiser, through the probability-flow ODE.

With lambda = log s the flow is dz/dlambda = z - D(z, s), and the density changes along it by the divergence:

    log p_0(z_0) = log p_max(z_max) + integral of (D - tr dD/dz) dlambda  from log s_min to log s_max

z_max is Gaussian about the posterior mean with variance s_max^2 + V, V the posterior covariance. At high s_max the mean is
D(0, s_max), and V is so small beside s_max^2 that one number for all directions will do. A process that starts at lower
noise (transport) needs the whole of V. There the mean is the fixed point of D(., s), and the slope J = dD/dz at that point
gives the precision, (s^2 + V)^-1 = (1 - J) / s^2. The trace is exact: one backward pass per parameter.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.sampler import LOW_START, fixed_point

__all__ = ["flow", "integrate", "log_density"]

STEEPEST = (
    0.999  # largest eigenvalue of J: theta 30 times as wide as the noise; a larger one is an error of the network
)


def log_density(denoiser: Denoiser, theta: Tensor, steps: int = 32) -> Tensor:
    """log p(theta | x) in standardised units.

    Arguments:
        denoiser: the (guided) denoiser, with K bound observations.
        theta: standardised parameters, with shape (n, K, D).
        steps: Runge-Kutta steps in log s; each costs four evaluations and 4 D backward passes.

    Returns: the log-density, with shape (n, K).
    """
    grid = torch.linspace(math.log(denoiser.s_min), math.log(denoiser.s_max), steps + 1, dtype=torch.float64)
    z, change = integrate(denoiser, theta, grid)
    start = _far_start if denoiser.s_max >= LOW_START else _low_start
    return (start(denoiser, z) + change).to(theta.dtype)


def _far_start(denoiser: Denoiser, z: Tensor) -> Tensor:
    """log p(z) at a high s_max, with shape (n, K)."""
    s = denoiser.s_max
    # The denoised mean at zero, and the variance of theta from the denoiser's slope there: dD/dz = v / (v + s^2).
    velocity, trace = flow(denoiser, torch.zeros_like(z[:1]), torch.tensor(math.log(s), dtype=torch.float64))
    centre, slope = -velocity, 1 - trace / z.shape[-1]
    v = (s**2 * slope.clamp(0, 0.5) / (1 - slope.clamp(0, 0.5))).clamp(0, 4)
    var = (s**2 + v).unsqueeze(-1)
    return -((z - centre).double() ** 2 / var + var.log() + math.log(2 * math.pi)).sum(-1) / 2


def _low_start(denoiser: Denoiser, z: Tensor) -> Tensor:
    """log p(z) at an s_max that is not large against the posterior's width, with shape (n, K)."""
    s = z.new_tensor(denoiser.s_max)
    with torch.no_grad():
        centre = fixed_point(denoiser, denoiser.s_max)
    with torch.enable_grad():
        point = centre.detach().requires_grad_(True)
        mean = denoiser.mean(point, s)
        rows = [torch.autograd.grad(mean[..., i].sum(), point, retain_graph=True)[0] for i in range(z.shape[-1])]
    slope = torch.stack([row[0] for row in rows], dim=-2).double()  # (K, D, D)
    values, vectors = torch.linalg.eigh((slope + slope.mT) / 2)
    complement = 1 - values.clamp(0, STEEPEST)  # 1 - J
    precision = complement / denoiser.s_max**2
    # The iteration to the fixed point converges slowly where J is near one; one Newton step completes it.
    step = torch.einsum("kji,nkj->nki", vectors, (mean - point).detach().double()) / complement
    along = torch.einsum("kji,nkj->nki", vectors, (z - centre).double()) - step
    return (precision.log() - math.log(2 * math.pi) - along**2 * precision).sum(-1) / 2


def integrate(denoiser: Denoiser, z: Tensor, grid: Tensor) -> tuple[Tensor, Tensor]:
    """Carries states along the flow by fourth-order Runge-Kutta steps, and adds up the divergence.

    Arguments:
        denoiser: the denoiser, with K bound observations.
        z: states at the first noise level, with shape (n, K, D).
        grid: log noise levels in ascending order, with shape (steps + 1,), in double precision.

    Returns: the states at the last noise level, with shape (n, K, D), and the integral of the divergence, (n, K).
    """
    change = torch.zeros(z.shape[:-1], dtype=torch.float64, device=z.device)
    for now, then in itertools.pairwise(grid):
        h, middle = float(then - now), (now + then) / 2
        v1, trace_1 = flow(denoiser, z, now)
        v2, trace_2 = flow(denoiser, z + h / 2 * v1, middle)
        v3, trace_3 = flow(denoiser, z + h / 2 * v2, middle)
        v4, trace_4 = flow(denoiser, z + h * v3, then)
        z = z + h / 6 * (v1 + 2 * v2 + 2 * v3 + v4)
        change = change + h / 6 * (trace_1 + 2 * trace_2 + 2 * trace_3 + trace_4)
    return z, change


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
