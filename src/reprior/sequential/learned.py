"""``ratio``: the carried prior is learned from the samples of the last posterior. The paper's sequential update.

A classifier between samples of p(theta | x_1..n) and of p(theta) gives log q_n/p (`reprior.ratio_from_samples`); with it, a
method changes the prior as with any other: density-ratio guidance by NRE in the paper ("Guidance for Prior Change via
Density Ratio Estimation"). Errors of one step are in the samples that the next one learns from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from reprior import priors
from reprior.adapted import AdaptedPosterior
from reprior.change import PriorChange
from reprior.methods import Problem, find
from reprior.posterior import Posterior
from reprior.ratio_from_samples import RatioNetwork, learn_log_ratio
from reprior.sequential.settings import RatioUpdateSettings
from reprior.simulations import Simulations

__all__ = ["LearnedUpdate"]

REGION = 2_000  # samples of the last posterior, and of the prior, that say where log q_n/p was learned
PRIOR_SAMPLES = 20_000  # of the classifier, at least: theta is cheap, and the prior is the wider side


class LearnedUpdate:
    """The state of a run.

    Arguments:
        posterior: the base posterior.
        nuisance: the indices of parameters that are not carried.
        settings: the settings.
        state: tensors of `state`, to go on from.
    """

    def __init__(
        self,
        posterior: Posterior,
        nuisance: tuple[int, ...],
        settings: RatioUpdateSettings,
        state: Mapping[str, Tensor] | None = None,
    ):
        self.posterior, self.nuisance, self.settings = posterior, list(nuisance), settings
        self.samples = (state or {}).get("samples", torch.empty(0, posterior.dim))

    def adapt(self, x: Tensor, seed: int) -> AdaptedPosterior:
        """The posterior of the next observation x, under the prior carried so far."""
        posterior, settings = self.posterior, self.settings
        region = torch.cat([self.samples[:REGION], priors.sample(posterior.prior, REGION, seed + 2)])
        log_r = self._log_ratio(seed)
        change = PriorChange(posterior.prior, posterior.scales.theta, log_r, kind="samples", outside=0.0, region=region)
        trained_on = self._local(x) if settings.local else posterior
        method = find(settings.method).build(Problem(trained_on, change, seed), settings.method_settings)
        why = f"log q/p is learned from {len(self.samples)} samples of the last posterior"
        return AdaptedPosterior(posterior, change, method.because(why), settings.sampler)

    def _log_ratio(self, seed: int) -> RatioNetwork:
        """log q_n/p of the carried parameters."""
        scale = self.posterior.scales.theta
        prior = priors.sample(self.posterior.prior, max(len(self.samples), PRIOR_SAMPLES), seed + 1)
        target = self.samples.clone()
        for theta in (prior, target):  # nuisance parameters are held, and the network is made blind to them
            theta[:, self.nuisance] = scale.shift[self.nuisance]
        network = learn_log_ratio(target, prior, scale, seed, self.settings.ratio)
        first = network.net[0]
        assert isinstance(first, torch.nn.Linear)
        first.weight[:, self.nuisance] = 0.0
        return network

    def _local(self, x: Tensor) -> Posterior:
        """The posterior with the new observation in place of the stored ones."""
        theta = self.samples[:REGION]
        names = self.posterior.parameters
        return replace(self.posterior, simulations=Simulations(theta, x.expand(len(theta), -1), None, names))

    def finish(self, x: Tensor, samples: Tensor, seed: int) -> tuple[Tensor, dict[str, float]]:
        """Takes in the observation x: keeps its samples, with shape (n, d), for the next one."""
        self.samples = samples
        return samples, {}

    def state(self) -> dict[str, Tensor]:
        """The tensors that a run goes on from."""
        return {"samples": self.samples}
