"""PriorGuide and its Monte Carlo variant: the competitors that approximate theta_0 | theta_t by a Gaussian.

PriorGuide fits r with K diagonal Gaussians (by least squares of the log of their sum on log r at draws of q; r is no
density, so their weights need not sum to one) and takes theta_0 | z to be N(mu, Sig), mu the denoised mean, Sig = (1/v + 1/s^2)^-1 I with v the pooled variance of base draws.
Then log E[r] is a mixture at mu, and its gradient in z goes through the full Jacobian of mu:

    a = log sum_k w_k N(mu; m_k, S_k + Sig),    grad_z a = J' sum_k share_k (S_k + Sig)^-1 (m_k - mu)

The Monte Carlo variant averages r over draws of N(mu, (1 + 1/s^2)^-1 I), for a ratio known only as a function. Both
need Langevin corrections after each step.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from reprior.change import PriorChange
from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.sampler import randn
from reprior.errors import InputError, RefusedError
from reprior.methods.plug_in import posterior_draws
from reprior.methods.method import GradientGuided, Guidance

__all__ = [
    "MixtureRatio",
    "MonteCarloSettings",
    "PriorGuide",
    "PriorGuideMonteCarlo",
    "PriorGuideSettings",
    "fit_mixture",
]


@dataclass(frozen=True)
class PriorGuideSettings:
    """Settings of PriorGuide, as the paper states them.

    Attributes:
        components: the number K of Gaussians.
        steps: gradient steps of the fit.
        batch: draws of q per step.
        learning_rate: Adam's learning rate.
        clip: the largest gradient norm.
        corrections: Langevin corrections after each step of the sampler.
    """

    components: int = 50
    steps: int = 20_000
    batch: int = 200
    learning_rate: float = 1e-3
    clip: float = 1.0
    corrections: int = 4

    def __post_init__(self) -> None:
        if min(self.components, self.steps, self.batch) < 1 or self.corrections < 0:
            raise InputError(f"components, steps and batch must be at least 1, corrections at least 0; got {self}")


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


class MixtureRatio(nn.Module):
    """log sum_k w_k N(theta; m_k, S_k) with diagonal S_k and positive weights, in standardised units."""

    def __init__(self, means: Tensor):
        super().__init__()
        self.means = nn.Parameter(means.clone())
        self.log_scales = nn.Parameter(torch.zeros_like(means))
        self.log_weights = nn.Parameter(torch.zeros(len(means)))

    def forward(self, theta: Tensor, extra: Tensor) -> Tensor:
        """The log of the mixture, widened by the variance ``extra``, at theta, with shape (*, d)."""
        var = (2 * self.log_scales).exp() + extra.unsqueeze(-2)
        gap = (theta.unsqueeze(-2) - self.means) ** 2 / var + var.log() + math.log(2 * math.pi)
        return torch.logsumexp(self.log_weights - gap.sum(-1) / 2, -1)


def fit_mixture(change: PriorChange, settings: PriorGuideSettings, seed: int) -> MixtureRatio:
    """Fits the mixture to log r at draws of q."""
    z = change.scale.forward(change.draw(max(10_000, settings.components), seed))
    log_r = change(z)
    keep = torch.isfinite(log_r)
    z, log_r = z[keep], log_r[keep]
    generator = torch.Generator().manual_seed(seed)
    model = MixtureRatio(z[torch.randperm(len(z), generator=generator)[: settings.components]])
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    zero = torch.zeros(z.shape[-1])
    with torch.no_grad():  # a constant factor of r changes nothing
        model.log_weights += (log_r - model(z, zero)).mean()
    for _ in range(settings.steps):
        rows = torch.randint(len(z), (settings.batch,), generator=generator)
        loss = (model(z[rows], zero) - log_r[rows]).square().mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimiser.step()
    return model.requires_grad_(False)


class PriorGuide(Guidance):
    """PriorGuide.

    Arguments:
        change: the change of prior.
        settings: its settings.
        mixture: the fitted ratio.
    """

    name = "priorguide"

    def __init__(self, change: PriorChange, settings: PriorGuideSettings, mixture: MixtureRatio):
        self.change, self.settings, self.mixture = change, settings, mixture
        self.corrections = settings.corrections

    def guide(self, denoiser: Denoiser, generator: Generator) -> Denoiser:
        d = self.mixture.means.shape[1]
        pooled = posterior_draws(denoiser, generator)[..., :d].var(0).mean(-1, keepdim=True)
        self.mixture.to(denoiser.x.device)  # it was fitted, or loaded, on the CPU
        return _MixtureGuided(denoiser, self.mixture, pooled)

    def config(self) -> dict[str, Any]:
        return {"settings": asdict(self.settings), "components": list(self.mixture.means.shape)}

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.mixture.state_dict())


class _MixtureGuided(GradientGuided):
    def __init__(self, inner: Denoiser, mixture: MixtureRatio, pooled: Tensor):
        super().__init__(inner)
        self.mixture, self.pooled = mixture, pooled

    def log_ratio(self, z: Tensor, s: Tensor, mean: Tensor) -> Tensor:
        theta = mean[..., : self.mixture.means.shape[1]]
        extra = 1 / (1 / self.pooled + 1 / s**2)
        return self.mixture(theta, extra.expand(theta.shape))


class PriorGuideMonteCarlo(Guidance):
    """PriorGuide with a Monte Carlo average instead of a fitted mixture.

    Arguments:
        change: the change of prior; log r must have a gradient.
        settings: its settings.
    """

    name = "priorguide_mc"
    has_density = False  # fresh draws in every evaluation

    def __init__(self, change: PriorChange, settings: MonteCarloSettings | None = None):
        if not change.differentiable:
            raise RefusedError("priorguide_mc needs a log r that autograd can differentiate")
        self.change, self.settings = change, settings or MonteCarloSettings()
        self.corrections = self.settings.corrections

    def guide(self, denoiser: Denoiser, generator: Generator) -> Denoiser:
        return _MonteCarloGuided(denoiser, self.change, self.settings.draws, generator)

    def config(self) -> dict[str, Any]:
        return {"settings": asdict(self.settings)}


class _MonteCarloGuided(GradientGuided):
    """grad log mean r(mu + sd eps) = J' E_w[grad log r], with self-normalised weights, in blocks of rows."""

    ROWS = 200_000  # draws held at once

    def __init__(self, inner: Denoiser, change: PriorChange, draws: int, generator: Generator):
        super().__init__(inner)
        self.change, self.points, self.generator = change, draws, generator
        self.d = len(change.scale.shift)

    def log_ratio(self, z: Tensor, s: Tensor, mean: Tensor) -> Tensor:
        # Only the gradient of a at mu matters: a surrogate with that gradient is u' mu.
        theta = mean[..., : self.d]
        sd = (1 / (1 + 1 / s**2)).sqrt()
        flat = theta.detach().reshape(-1, self.d)
        wide = sd.expand(*theta.shape[:-1], 1).reshape(-1, 1)
        block = max(1, self.ROWS // self.points)
        parts = []
        for mu, width in zip(flat.split(block), wide.split(block), strict=True):
            eps = randn(mu.new_empty(self.points, *mu.shape), self.generator)
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
