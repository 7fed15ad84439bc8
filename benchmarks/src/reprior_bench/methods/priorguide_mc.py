"""PriorGuide with a Monte Carlo average in place of a fitted mixture, for a ratio that is known as a function alone.

theta_0 | z is taken to be N(mu, V), with mu the denoised mean and V = (1 + 1/s^2)^-1 I, and r is averaged over draws of it:

    grad_z a = J' E_w[grad log r(theta)],    theta ~ N(mu, V),  w ~ r(theta),  J = d mu / d z
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from reprior.change import PriorChange
from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.sampler import randn
from reprior.errors import InputError, RefusedError
from reprior.methods import Method, Problem
from reprior.methods.guided import GradientGuided

__all__ = ["MonteCarloSettings", "PriorGuideMonteCarlo"]

ROWS = 200_000  # draws held at once: some ten MB in six dimensions


@dataclass(frozen=True)
class MonteCarloSettings:
    """Settings of PriorGuide's Monte Carlo variant.

    Attributes:
        draws: draws of theta_0 per state and step.
        corrections: Langevin corrections after each step of the sampler.
    """

    draws: int = 1_000
    corrections: int = 8

    def __post_init__(self) -> None:
        if self.draws < 1 or self.corrections < 0:
            raise InputError(f"draws must be at least 1 and corrections at least 0; got {self}")


class PriorGuideMonteCarlo(Method):
    """PriorGuide by Monte Carlo: the variant of PriorGuide (Yang et al. 2025) for a ratio without a closed form."""

    name = "priorguide_mc"
    summary = "PriorGuide with a Monte Carlo average of r"
    Settings = MonteCarloSettings
    has_density = False  # fresh draws in every evaluation
    settings: MonteCarloSettings

    def __init__(self, problem: Problem, settings: MonteCarloSettings | None = None):
        super().__init__(problem, settings or MonteCarloSettings())
        if not self.change.differentiable:
            raise RefusedError("priorguide_mc needs a log r that autograd can differentiate")
        self.corrections = self.settings.corrections

    def guide(self, denoiser: Denoiser, generator: Generator) -> Denoiser:
        return _Guided(denoiser, self.change, self.settings.draws, generator)


class _Guided(GradientGuided):
    def __init__(self, inner: Denoiser, change: PriorChange, draws: int, generator: Generator):
        super().__init__(inner)
        self.change, self.count, self.generator = change, draws, generator
        self.d = len(change.scale.shift)

    def log_ratio(self, z: Tensor, s: Tensor, mean: Tensor) -> Tensor:
        # Only the gradient of a at mu matters: u' mu has the gradient u.
        theta = mean[..., : self.d]
        sd = (1 / (1 + 1 / s**2)).sqrt()
        flat = theta.detach().reshape(-1, self.d)
        wide = sd.expand(*theta.shape[:-1], 1).reshape(-1, 1)
        block = max(1, ROWS // self.count)
        parts = []
        for mu, width in zip(flat.split(block), wide.split(block), strict=True):
            eps = randn(mu.new_empty(self.count, *mu.shape), self.generator)
            with torch.enable_grad():
                point = (mu + width * eps).requires_grad_(True)
                log_r = self.change(point)
                slope = torch.zeros_like(point)
                if log_r.requires_grad:  # not where every point lies outside q's support
                    (slope,) = torch.autograd.grad(log_r.nan_to_num(neginf=0.0).sum(), point)
            weight = torch.softmax(log_r.detach(), 0).nan_to_num(nan=0.0)
            parts.append((weight.unsqueeze(-1) * slope.nan_to_num(nan=0.0)).sum(0))
        u = torch.cat(parts).reshape(theta.shape)
        return (u * theta).sum(-1)
