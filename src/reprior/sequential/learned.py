"""``ratio`` and ``priorguide_mc``: the carried prior is learned from the samples of the last posterior.

The paper's algorithm: a classifier between samples of p(theta | x_1..n) and of p(theta) gives log q_n/p
(`reprior.ratio_from_samples`); on it, a guidance is trained (NRE, ``ratio``) or averaged (``priorguide_mc``). Errors of one
step are in the samples that the next one learns from.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from reprior import priors
from reprior.adapted import CHECK_DRAWS, AdaptedPosterior
from reprior.change import PriorChange
from reprior.methods.registry import build_guidance
from reprior.posterior import Posterior
from reprior.ratio_from_samples import RatioNetwork, learn_log_ratio
from reprior.sequential.settings import MonteCarloUpdateSettings, RatioUpdateSettings
from reprior.simulations import Simulations

__all__ = ["Learned"]

REGION = 2_000


class Learned:
    """The state of a run.

    Arguments:
        posterior: the base posterior.
        nuisance: the indices of parameters that are not carried.
        settings: the settings, of ``ratio`` or of ``priorguide_mc``.
        state: tensors of `state`, to go on from.
    """

    def __init__(
        self,
        posterior: Posterior,
        nuisance: tuple[int, ...],
        settings: RatioUpdateSettings | MonteCarloUpdateSettings,
        state: dict[str, Tensor] | None = None,
    ):
        self.posterior, self.nuisance, self.settings = posterior, list(nuisance), settings
        self.samples = (state or {}).get("samples", torch.empty(0, posterior.dim))
        self.pool = CHECK_DRAWS

    def adapt(self, x: Tensor, seed: int) -> AdaptedPosterior:
        """The posterior of the next observation x, under the prior carried so far."""
        posterior, settings = self.posterior, self.settings
        log_r = self._log_ratio(seed)
        region = torch.cat([self.samples[:REGION], priors.sample(posterior.prior, REGION, seed + 2)])
        change = PriorChange(posterior.prior, None, log_r, True, "samples", posterior.scales.theta, 0.0, region=region)
        if isinstance(settings, MonteCarloUpdateSettings):
            guidance, _ = build_guidance("priorguide_mc", posterior, change, settings.guidance, seed)
        else:
            trained_on = self._at(x) if settings.here else posterior
            guidance, _ = build_guidance("nre", trained_on, change, settings.guidance, seed)
        why = f"log q/p is learned from {len(self.samples)} samples of the last posterior"
        return AdaptedPosterior(posterior, change, guidance, why, (), settings.sampler)

    def _log_ratio(self, seed: int) -> RatioNetwork:
        """log q_n/p of the carried parameters."""
        scale = self.posterior.scales.theta
        prior = priors.sample(self.posterior.prior, max(len(self.samples), 20_000), seed + 1)
        target = self.samples.clone()
        for theta in (prior, target):  # nuisance parameters are held, and the network is made blind to them
            theta[:, self.nuisance] = scale.shift[self.nuisance]
        network = learn_log_ratio(target, prior, scale, seed, self.settings.ratio)
        first = network.net[0]
        assert isinstance(first, torch.nn.Linear)
        first.weight[:, self.nuisance] = 0.0
        return network

    def _at(self, x: Tensor) -> Posterior:
        """The posterior with the new observation in place of the stored ones."""
        theta = self.samples[:REGION]
        names = self.posterior.parameters
        return replace(self.posterior, simulations=Simulations(theta, x.expand(len(theta), -1), None, names))

    def finish(self, x: Tensor, samples: Tensor, seed: int) -> tuple[Tensor, dict[str, Any]]:
        """Takes in the observation x: keeps its samples, with shape (n, d), for the next one."""
        notes = {"unchecked": True} if len(self.samples) else {}
        self.samples = samples
        return samples, notes

    def state(self) -> dict[str, Tensor]:
        """The tensors that a run goes on from."""
        return {"samples": self.samples}
