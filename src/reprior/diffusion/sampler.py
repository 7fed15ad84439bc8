"""Samplers: from noise to parameters along a denoiser.

With z = theta_0 + s eps the probability-flow ODE is dz/ds = (z - D(z, s)) / s with D the denoised mean. Three kinds:

- ``multistep``: second order, one evaluation a step. In h = log(s / s') the ODE is linear with source term D, so a step
  is exact for constant D; D is extrapolated from the last two evaluations. ``eta`` = 0 is the ODE and ``eta`` = 1 the
  reverse SDE (fresh noise in each step but the last); values between mix the two. With Langevin corrections D is not
  extrapolated. The multistep scheme is that of DPM-Solver++ (Lu et al. 2022, arXiv 2211.01095).
- ``heun``: second order, two evaluations a step, on dz/ds (Karras et al. 2022, arXiv 2206.00364).
- ``euler_maruyama``: the reverse VP-SDE in VP time t, t_i = (t_min + i/T (t_max - t_min))^2, noise in every step, and
  Langevin corrections of size beta |dt| / 4 after each step where asked for. With 25 steps it is the paper's sampler.

Langevin corrections are available in all kinds: |dt| beta = |d log(1 + s^2)| ties their size to the grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.schedule import VP, noise_grid
from reprior.errors import InputError

__all__ = ["PAPER_SAMPLER", "ROWS", "Sampler", "chunked", "fixed_point", "initial_state", "run"]

KINDS = ("multistep", "heun", "euler_maruyama")
ROWS = 20_000  # rows denoised at once: bounds the memory, whatever n
LOW_START = 10.0  # prior widths: above it the variance of theta is under 1 % of s^2 and the start needs no correction


@dataclass(frozen=True)
class Sampler:
    """Settings of a sampler.

    Attributes:
        kind: "multistep", "heun" or "euler_maruyama".
        steps: the number of steps.
        rho: how much denser the noise grid is at low noise (not used by euler_maruyama); 20 gives nearly equal steps in
            log s, which suits posteriors of any width.
        eta: the amount of fresh noise in a step of ``multistep``, from 0 (ODE) to 1 (SDE).
        corrections: the number of Langevin corrections after each step.
    """

    kind: Literal["multistep", "heun", "euler_maruyama"] = "multistep"
    steps: int = 32
    rho: float = 20.0
    eta: float = 0.0
    corrections: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"sampler kind {self.kind!r} is unknown; allowed: {', '.join(KINDS)}")
        if self.steps < 2:
            raise InputError(f"sampler steps must be at least 2; got {self.steps}")
        if not self.rho > 0:
            raise InputError(f"sampler rho must be positive; got {self.rho}")
        if not 0 <= self.eta <= 1:
            raise InputError(f"sampler eta must lie in [0, 1]; got {self.eta}")
        if self.corrections < 0:
            raise InputError(f"sampler corrections must be 0 or more; got {self.corrections}")


PAPER_SAMPLER = Sampler(kind="euler_maruyama", steps=25)


def randn(like: Tensor, generator: Generator) -> Tensor:
    """Standard normal noise of the shape, dtype and device of ``like``, drawn from a CPU generator."""
    return torch.randn(like.shape, generator=generator, dtype=torch.float32).to(like)


def initial_state(denoiser: Denoiser, n: int, s: float, generator: Generator) -> Tensor:
    """z at noise s, centred on the denoised mean there, with shape (n, K, D).

    At high noise z is Gaussian about E[theta_0 | x] with variance s^2 + Var[theta_0 | x], and mean(0, s) is E[theta_0 | x]
    up to a term of order 1/s^2. The posterior variance is at most about 1 (standardised units), so s^2 dominates. A
    process that starts at lower noise (transport) needs both moments. Its centre is the fixed point of mean(., s). Adding
    half of (mean(z, s) - centre) to z widens s to sqrt(s^2 + Var) up to a term of order Var^2/s^4.
    """
    centre = fixed_point(denoiser, s)
    noise = s * randn(centre.expand(n, -1, -1), generator)
    if s >= LOW_START:
        return centre + noise
    return centre + noise + (denoiser.mean(centre + noise, centre.new_tensor(s)) - centre) / 2


def fixed_point(denoiser: Denoiser, s: float) -> Tensor:
    """The point z = mean(z, s), an estimate of E[theta_0 | x] at noise s, with shape (1, K, D)."""
    centre = torch.zeros(1, denoiser.observations, denoiser.dim, dtype=denoiser.x.dtype, device=denoiser.x.device)
    for _ in range(1 if s >= LOW_START else 4):
        centre = denoiser.mean(centre, centre.new_tensor(s))
    return centre


@torch.no_grad()
def run(
    denoiser: Denoiser,
    n: int,
    sampler: Sampler,
    generator: Generator,
    z: Tensor | None = None,
    s_start: float | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Tensor:
    """Draws theta_0 for each bound observation.

    Arguments:
        denoiser: the (guided) denoiser, with K bound observations.
        n: the number of draws per observation.
        sampler: the settings.
        generator: a CPU generator; the same state gives the same draws.
        z: states at noise s_start to begin with, with shape (n, K, D), instead of fresh noise at s_max.
        s_start: the noise level to start from; s_max if not given.
        on_step: called after each step with its index.

    Returns: theta_0, with shape (n, K, D), standardised.
    """
    start = denoiser.s_max if s_start is None else s_start
    if z is None and sampler.kind == "euler_maruyama" and start >= LOW_START:
        z = math.sqrt(1 + start**2) * randn(denoiser.x.new_empty(n, denoiser.observations, denoiser.dim), generator)
    elif z is None:
        z = initial_state(denoiser, n, start, generator)
    if sampler.kind == "euler_maruyama":
        return _euler_maruyama(denoiser, z, start, sampler, generator, on_step)
    steps = sampler.steps + denoiser.extra_steps
    grid = noise_grid(start, min(denoiser.s_min, start / 2), steps, sampler.rho)
    grid = torch.cat([grid, grid.new_zeros(1)])
    return (_multistep if sampler.kind == "multistep" else _heun)(denoiser, z, grid, sampler, generator, on_step)


def chunked(
    denoiser: Denoiser, n: int, sampler: Sampler, generator: Generator, on_step: Callable[[int], None] | None = None
) -> Tensor:
    """Runs the sampler in chunks of bounded memory; arguments as in `run`. Returns theta_0, with shape (n, K, D).

    A posterior that is not a diffusion (`reprior.integrations.sbi_sampled`) has a method ``draws``, which is used instead.
    """
    own = getattr(denoiser, "draws", None)
    if own is not None:
        return own(n, generator)
    chunk = max(1, ROWS // denoiser.observations)
    sizes = [min(chunk, n - i) for i in range(0, n, chunk)]
    return torch.cat([run(denoiser, size, sampler, generator, on_step=on_step) for size in sizes])


def _langevin(denoiser: Denoiser, z: Tensor, s: Tensor, step: Tensor, n: int, generator: Generator) -> Tensor:
    """n Langevin steps of size ``step`` at noise s."""
    for _ in range(n):
        z = z + step * denoiser.score(z, s) + torch.sqrt(2 * step) * randn(z, generator)
    return z


def _correct(
    denoiser: Denoiser, z: Tensor, s: Tensor, s_next: Tensor, sampler: Sampler, generator: Generator
) -> Tensor:
    """Langevin corrections at noise s_next, after a step from s.

    A VP Langevin step of beta |dt| / 4 on theta_t is one of (1 + s^2) beta |dt| / 4 on z = theta_t / alpha_t.
    """
    if sampler.corrections == 0 or s_next == 0:
        return z
    step = (torch.log1p(s**2) - torch.log1p(s_next**2)) / 4 * (1 + s_next**2)
    return _langevin(denoiser, z, s_next.to(z), step.to(z), sampler.corrections, generator)


def _multistep(denoiser, z, grid, sampler, generator, on_step):
    before: Tensor | None = None
    h_before = grid.new_ones(())
    for i in range(len(grid) - 1):
        s, s_next = grid[i], grid[i + 1]
        now = denoiser.mean(z, s.to(z))
        if s_next == 0:
            z = now  # the last step returns the denoised mean, without noise
        else:
            h = torch.log(s / s_next)
            # Extrapolate D to the middle of the step; then the step is exact for constant D.
            target = now if before is None else now + (h / h_before / 2).to(z) * (now - before)
            keep = torch.exp(-h * (1 + sampler.eta**2))  # eta = 0: s'/s; eta = 1: (s'/s)^2
            z = keep.to(z) * z + (1 - keep).to(z) * target
            if sampler.eta > 0:
                fresh = s_next * torch.sqrt(-torch.expm1(-2 * sampler.eta**2 * h))
                z = z + fresh.to(z) * randn(z, generator)
            z = _correct(denoiser, z, s, s_next, sampler, generator)
            # Langevin noise changes D between steps, and extrapolation would take that for a slope: none then.
            before, h_before = (now if sampler.corrections == 0 else None), h
        if on_step is not None:
            on_step(i)
    return z


def _heun(denoiser, z, grid, sampler, generator, on_step):
    for i in range(len(grid) - 1):
        s, s_next = grid[i], grid[i + 1]
        slope = (z - denoiser.mean(z, s.to(z))) / s.to(z)
        moved = z + (s_next - s).to(z) * slope
        if s_next > 0:  # second order, except into s = 0
            slope_next = (moved - denoiser.mean(moved, s_next.to(z))) / s_next.to(z)
            moved = z + (s_next - s).to(z) * (slope + slope_next) / 2
        z = _correct(denoiser, moved, s, s_next, sampler, generator)
        if on_step is not None:
            on_step(i)
    return z


def _euler_maruyama(denoiser, z, start, sampler, generator, on_step):
    vp = VP()
    top = float(vp.t(torch.tensor(start, dtype=torch.float64)))
    if top > vp.t_max + 1e-9:  # the base has higher noise than the VP process has: start at the VP maximum
        z = z * (vp.level(vp.t_max) / start)
        top = vp.t_max
    ramp = torch.arange(sampler.steps + 1, dtype=torch.float64) / sampler.steps
    times = (vp.t_min + ramp * (top**0.5 - vp.t_min)) ** 2
    theta_t = z * vp.alpha(times[-1]).to(z)
    for i in range(sampler.steps, 0, -1):
        t, dt = times[i], times[i] - times[i - 1]
        beta = vp.beta(t)
        theta_t = theta_t + (beta * dt).to(z) * (theta_t / 2 + _vp_score(denoiser, vp, theta_t, t))
        theta_t = theta_t + torch.sqrt(beta * dt).to(z) * randn(z, generator)
        step = (vp.beta(times[i - 1]) * dt / 4).to(z)
        for _ in range(sampler.corrections if i > 1 else 0):
            drift = _vp_score(denoiser, vp, theta_t, times[i - 1])
            theta_t = theta_t + step * drift + torch.sqrt(2 * step) * randn(z, generator)
        if on_step is not None:
            on_step(sampler.steps - i)
    return theta_t / vp.alpha(times[0]).to(z)


def _vp_score(denoiser: Denoiser, vp: VP, theta_t: Tensor, t: Tensor) -> Tensor:
    """The score of theta_t at VP time t."""
    alpha, s = vp.alpha(t).to(theta_t), vp.s(t).to(theta_t)
    z = theta_t / alpha
    return (denoiser.mean(z, s) - z) / (s**2 * alpha)
