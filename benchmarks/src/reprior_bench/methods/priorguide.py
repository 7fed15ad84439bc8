"""PriorGuide (Yang et al. 2025): r as a mixture of Gaussians, theta_0 | theta_t as one Gaussian.

r is fitted with K diagonal Gaussians, by least squares of the log of their sum on log r at draws of q (r is no density, so
their weights need not sum to one). theta_0 | z is taken to be N(mu, Sig), with mu the denoised mean, Sig = (1/v + 1/s^2)^-1 I
and v the pooled variance of base draws. Then log E[r] is a mixture at mu, and its gradient in z goes through the full
Jacobian J of mu:

    a = log sum_k w_k N(mu; m_k, S_k + Sig),    grad_z a = J' sum_k c_k (S_k + Sig)^-1 (m_k - mu),    c_k ~ w_k N(mu; ...)

Langevin corrections follow each step of the sampler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from reprior.change import PriorChange
from reprior.diffusion.denoiser import Denoiser
from reprior.errors import InputError
from reprior.methods import Method, Problem
from reprior.methods.guided import GradientGuided
from reprior.methods.plug_in import posterior_draws

__all__ = ["MixtureRatio", "PriorGuide", "PriorGuideSettings", "fit_mixture"]


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


class PriorGuide(Method):
    """PriorGuide (Yang et al. 2025).

    Arguments:
        problem: the base posterior and the change of prior.
        settings: its settings.
        mixture: the fitted ratio.
    """

    name = "priorguide"
    summary = "r as a fitted mixture of Gaussians, as guidance"
    Settings = PriorGuideSettings
    settings: PriorGuideSettings

    def __init__(self, problem: Problem, settings: PriorGuideSettings, mixture: MixtureRatio):
        super().__init__(problem, settings)
        self.mixture = mixture
        self.corrections = settings.corrections

    @classmethod
    def build(cls, problem: Problem, settings: PriorGuideSettings | None = None) -> Method:
        chosen = settings or PriorGuideSettings()
        return cls(problem, chosen, fit_mixture(problem.change, chosen, problem.seed))

    def guide(self, denoiser: Denoiser, generator: Generator) -> Denoiser:
        d = self.mixture.means.shape[1]
        pooled = posterior_draws(denoiser, generator)[..., :d].var(0).mean(-1, keepdim=True)
        self.mixture.to(denoiser.x.device)  # it was fitted, or read from a file, on the CPU
        return _Guided(denoiser, self.mixture, pooled)

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.mixture.state_dict())

    def config(self) -> dict[str, Any]:
        return {"settings": asdict(self.settings), "components": list(self.mixture.means.shape)}

    @classmethod
    def rebuild(cls, problem: Problem, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Method:
        mixture = MixtureRatio(torch.zeros(config["components"]))
        mixture.load_state_dict(dict(tensors))
        return cls(problem, PriorGuideSettings(**config["settings"]), mixture.requires_grad_(False))


class _Guided(GradientGuided):
    def __init__(self, inner: Denoiser, mixture: MixtureRatio, pooled: Tensor):
        super().__init__(inner)
        self.mixture, self.pooled = mixture, pooled

    def log_ratio(self, z: Tensor, s: Tensor, mean: Tensor) -> Tensor:
        theta = mean[..., : self.mixture.means.shape[1]]
        extra = 1 / (1 / self.pooled + 1 / s**2)
        return self.mixture(theta, extra.expand(theta.shape))
