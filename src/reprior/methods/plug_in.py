"""The plug-in value: what the guidance would be if theta_0 given theta_t were known from its denoised mean alone.

a*(z, s) = log E[r(theta_0) | z, x]. Where r varies little over that distribution, a* = log r(mu), with mu the denoised
mean: exact as s -> 0. Where log r = -theta' L theta / 2 + h' theta is quadratic and theta_0 | z is N(mu, V), with
V^-1 = C^-1 + I/s^2 and C the posterior covariance, the expectation is closed:

    a = log r(mu) + 1/2 (h - L mu)' (V^-1 + L)^-1 (h - L mu) + (a term in s alone)

which is exact for Gaussian posteriors at every noise. Both fail at high noise where the posterior has several modes. The
first is accurate while min(s^2, C) |Hessian of log r| is small.

The first form is diffusion posterior sampling (Chung et al. 2023, arXiv 2209.14687) with log r as the log-likelihood.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from reprior.change import PriorChange
from reprior.diffusion.denoiser import Denoiser, finer
from reprior.diffusion.sampler import Sampler, chunked
from reprior.errors import RefusedError
from reprior.methods.guided import GradientGuided
from reprior.methods.method import Method, Problem
from reprior.quadratic import Quadratic

__all__ = ["SOME_DRAWS", "PlugIn", "PlugInGuided", "plug_in_value", "posterior_draws", "precision_of"]

SOME_DRAWS = 200  # base draws that estimate a posterior standard deviation to 5 %
SOME_SAMPLER = Sampler(steps=16)  # a width needs no finer draws


def posterior_draws(denoiser: Denoiser, generator: Generator, n: int = SOME_DRAWS) -> Tensor:
    """A few base draws at each bound observation, with shape (n, K, D), to estimate the posterior's width."""
    return chunked(denoiser, n, SOME_SAMPLER, generator)


def precision_of(draws: Tensor, d: int) -> Tensor:
    """The inverse covariance of the first d entries of draws with shape (n, K, D); shape (K, d, d)."""
    theta = draws[..., :d].transpose(0, 1).double()
    gap = theta - theta.mean(1, keepdim=True)
    cov = gap.transpose(1, 2) @ gap / (theta.shape[1] - 1)
    # Few draws do not determine small correlations: shrink these, more so with more parameters.
    keep = 1 - d / theta.shape[1]
    cov = keep * cov + (1 - keep) * torch.diag_embed(cov.diagonal(dim1=1, dim2=2))
    cov = cov + torch.diag_embed(1e-8 + 1e-6 * cov.diagonal(dim1=1, dim2=2))
    return torch.linalg.inv(cov).to(draws.dtype)


def plug_in_value(
    change: PriorChange, quadratic: Quadratic, mean: Tensor, s: Tensor, precision: Tensor, power: float = 1.0
) -> Tensor:
    """a(z, s) from the denoised mean, with shape (*, K).

    Arguments:
        change: the change of prior.
        quadratic: its quadratic part; used if it is exact.
        mean: the denoised mean at z, with shape (*, K, D).
        s: the noise level, broadcasting to (*, K, 1).
        precision: the inverse posterior covariance C^-1, with shape (K, d, d).
        power: the plug-in value of r^power.
    """
    if not quadratic.exact:
        return power * change(mean)
    d = len(quadratic.h)
    L, h = power * quadratic.L.to(mean), power * quadratic.h.to(mean)
    theta = mean[..., :d]
    slope = h - theta @ L
    eye = torch.eye(d, dtype=mean.dtype, device=mean.device)
    level = s if s.ndim == 0 else s.unsqueeze(-1)
    total = precision + eye / level**2 + L
    # Where q is wider than p, V^-1 + L may not be positive: then r has no expectation there; keep log r(mu).
    factor, failed = torch.linalg.cholesky_ex(total)
    factor = torch.where((failed > 0)[..., None, None], eye, factor)
    # One inverse for all rows of a noise level is far cheaper than one solution for each row.
    inverse = torch.cholesky_inverse(factor)
    gain = 0.5 * (slope * (slope.unsqueeze(-2) @ inverse).squeeze(-2)).sum(-1)
    value = -0.5 * ((theta @ L) * theta).sum(-1) + theta @ h + power * quadratic.c
    return value + torch.where(failed > 0, torch.zeros_like(gain), gain)


class PlugInGuided(GradientGuided):
    """The base guided by the plug-in value of r^power."""

    def __init__(
        self, inner: Denoiser, change: PriorChange, quadratic: Quadratic, precision: Tensor, power: float = 1.0
    ):
        top = power * float(torch.linalg.eigvalsh(quadratic.L).max()) if quadratic.exact else 0.0
        super().__init__(inner if top <= 0 else finer(inner, top**-0.5))
        self.change, self.quadratic, self.precision, self.power = change, quadratic, precision, power

    def log_ratio(self, z: Tensor, s: Tensor, mean: Tensor) -> Tensor:
        return plug_in_value(self.change, self.quadratic, mean, s, self.precision, self.power)


class PlugIn(Method):
    """Guidance by the plug-in value alone: no training; right for near-Gaussian posteriors or at low noise.

    Diffusion posterior sampling (Chung et al. 2023, arXiv 2209.14687) with log r in place of a log-likelihood.
    """

    name = "plug_in"
    summary = "log r at the denoised mean, as guidance"

    def __init__(self, problem: Problem, settings: None = None):
        super().__init__(problem, settings)
        if not (self.change.quadratic.exact or self.change.differentiable):
            raise RefusedError("plug_in guides by the gradient of log r, and this one has none; use method='sir'")

    def guide(self, denoiser: Denoiser, generator: Generator) -> Denoiser:
        quadratic = self.change.quadratic
        precision = precision_of(posterior_draws(denoiser, generator), len(quadratic.h))
        return PlugInGuided(denoiser, self.change, quadratic, precision)
