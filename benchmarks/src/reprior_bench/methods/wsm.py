"""Weighted score matching (WSM): a correction of the score learned by r-weighted denoising.

The correction u(theta_t, x, t) minimises E[ r(theta_0) || mean + c u - theta_0 ||^2 / c^2 ], with mean the base's denoised
mean and c = s / sqrt(1 + s^2), the scale of what is left to learn; at the optimum mean + c u = E_q[theta_0 | z, x].
In score terms the weight is (sigma_t / alpha_t)^2 up to a factor: the unweighted loss is dominated by the lowest noise.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import torch
from torch import Generator, Tensor, nn

from reprior.change import PriorChange
from reprior.diffusion.denoiser import Denoiser, Wrapped, features_of, widen
from reprior.diffusion.sampler import ROWS
from reprior.networks.fit import FitResult, fit
from reprior.methods.learned.guidance import RatioSettings, trained_to
from reprior.methods.method import Guidance, check_learned
from reprior.networks.ratio import RatioMLP
from reprior.posterior import Posterior
from reprior.methods.learned.pool import Pool
from reprior.methods.learned.training import NOISY_COPIES, join, make_pool, mean_over_parts, noisy_rows

__all__ = ["WeightedScoreGuidance", "learn_correction"]


class WeightedScoreGuidance(Guidance):
    """Guidance by a learned correction of the denoised mean.

    Arguments:
        model: the trained correction.
        posterior: the base posterior it was trained for.
        settings: how it was trained.
        result: what the training did.
        notes: what there is to say of the training set.
    """

    name = "wsm"

    def __init__(
        self,
        model: RatioMLP,
        posterior: Posterior,
        settings: RatioSettings,
        result: FitResult | None = None,
        notes: dict[str, Any] | None = None,
    ):
        self.model, self.posterior, self.settings = model, posterior, settings
        self.result, self.notes = result, notes or {}

    def guide(self, denoiser: Denoiser, generator: Generator) -> Denoiser:
        check_learned(self.name, denoiser, self.model.dim, self.notes.get("observed"))
        with torch.no_grad():
            code = self.model.encode(widen(self.posterior.base.features(denoiser.x), self.model.x_features))
        return _Corrected(denoiser, self.model, code, trained_to(self.settings))

    def config(self) -> dict[str, Any]:
        return {
            "settings": asdict(self.settings),
            "dim": self.model.dim,
            "x_features": self.model.x_features,
            "notes": self.notes,
        }

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.model.state_dict())


class _Corrected(Wrapped):
    def __init__(self, inner: Denoiser, model: RatioMLP, code: Tensor, most: float):
        super().__init__(inner)
        self.s_max = min(inner.s_max, most)
        self.model, self.code = model, code

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        return self.inner.mean(z, s) + s / torch.sqrt(1 + s**2) * self.model(z, s, self.code)


def learn_correction(
    posterior: Posterior,
    change: PriorChange,
    settings: RatioSettings,
    seed: int,
    progress: bool = True,
    observed: Tensor | None = None,
    pool: Pool | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> WeightedScoreGuidance:
    """Learns the correction. Arguments as in `reprior.methods.learned.training.learn_ratio`."""
    pool = make_pool(posterior, change, settings, seed, observed, cache=cache) if pool is None else pool
    generator = torch.Generator().manual_seed(seed + 1)
    rows = join([noisy_rows(posterior, pool, settings.time, True, generator) for _ in range(NOISY_COPIES)])
    device = posterior.device
    features = features_of(posterior.base, pool.x, ROWS)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        dim = pool.theta.shape[1]
        model = RatioMLP(dim, features.shape[1], dim, settings.network).to(device)
    is_held = torch.zeros(len(pool.theta), dtype=torch.bool)
    is_held[pool.split(settings.training.validation)[0]] = True
    held, kept = is_held[rows.row].nonzero()[:, 0], (~is_held[rows.row]).nonzero()[:, 0]

    def value(module: nn.Module, some: Tensor) -> Tensor:
        row = rows.row[some]
        code = module.encode(features[pool.index[row].to(device)])  # pyright: ignore[reportCallIssue]
        z, s = rows.z[some].to(device), rows.s[some].to(device)
        c = s / torch.sqrt(1 + s**2)
        left = (pool.theta[row] - rows.mean[some]).to(device) / c
        error = (module(z, s, code) - left).square().mean(-1)
        return (pool.weight[row].to(device) * error).mean()

    result = fit(
        model,
        lambda module, i, _: value(module, kept[i]),
        lambda module: mean_over_parts(lambda part: value(module, part), held),
        len(kept),
        settings.training,
        seed,
        label="weighted score",
        progress=progress,
    )
    seen = None if observed is None else observed.tolist()
    notes = {"training_ess": pool.ess, "seconds": result.seconds, "observed": seen}
    return WeightedScoreGuidance(model.requires_grad_(False), posterior, settings, result, notes)
