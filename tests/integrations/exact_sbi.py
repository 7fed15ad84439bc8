"""sbi estimators with a known answer: theta ~ N(centre, spread^2), x = theta + N(0, c), one estimator for each process.

Their `forward` is the closed form, so a posterior around them is exact, and what is left is reprior's own conversion.
"""

from __future__ import annotations

import torch
from sbi.inference.posteriors.vector_field_posterior import VectorFieldPosterior
from sbi.neural_nets.estimators.flowmatching_estimator import FlowMatchingEstimator
from sbi.neural_nets.estimators.score_estimator import (
    SubVPScoreEstimator,
    VEScoreEstimator,
    VPScoreEstimator,
)
from sbi.neural_nets.net_builders.vector_field_nets import VectorFieldMLP
from torch import Tensor
from torch.distributions import Independent, Normal

C = 0.3
CENTRE, SPREAD = (1.0, -0.5), (1.5, 1.5)
KINDS = ("ve", "vp", "subvp", "flow")


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (*, 2) and variance (2,) of theta given x, in closed form."""
    centre, spread = torch.tensor(CENTRE).to(x), torch.tensor(SPREAD).to(x)
    var = 1 / (1 / spread**2 + 1 / C)
    return var * (centre / spread**2 + x / C), var


def denoised(y: Tensor, s: Tensor, x: Tensor) -> Tensor:
    """E[theta_0 | y = theta_0 + s eps, x]."""
    mean, var = moments(x)
    return mean + var / (var + s**2) * (y - mean)


class _Score:
    def forward(self, input: Tensor, condition: Tensor, time: Tensor) -> Tensor:
        m, sigma = self.mean_t_fn(time), self.std_fn(time)
        mean, var = moments(self._embedding_net(condition))
        return -(input - m * mean) / (m**2 * var + sigma**2)


class ExactVE(_Score, VEScoreEstimator):
    pass


class ExactVP(_Score, VPScoreEstimator):
    pass


class ExactSubVP(_Score, SubVPScoreEstimator):
    pass


class ExactFlow(FlowMatchingEstimator):
    def forward(self, input: Tensor, condition: Tensor, time: Tensor) -> Tensor:
        t = time.unsqueeze(-1)
        mean, var = moments(self._embedding_net(condition))
        m, sigma = 1 - t, t + self.noise_scale
        eps = sigma * (input - m * mean) / (m**2 * var + sigma**2)  # E[eps | theta_t]
        theta = mean + m * var * (input - m * mean) / (m**2 * var + sigma**2)  # E[theta_0 | theta_t]
        return eps - theta


def prior() -> Independent:
    return Independent(Normal(torch.tensor(CENTRE), torch.tensor(SPREAD)), 1)


def simulations(n: int = 2_000, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    theta = torch.tensor(CENTRE) + torch.tensor(SPREAD) * torch.randn(n, 2, generator=generator)
    return theta, theta + C**0.5 * torch.randn(n, 2, generator=generator)


def exact_sbi(kind: str, **posterior_options) -> VectorFieldPosterior:
    """An sbi posterior of that process whose estimator is exact."""
    cls = {"ve": ExactVE, "vp": ExactVP, "subvp": ExactSubVP, "flow": ExactFlow}[kind]
    net = VectorFieldMLP(2, 2, 4, 4, 1)  # there, but not asked
    estimator = cls(net=net, input_shape=torch.Size([2]), condition_shape=torch.Size([2]))
    return VectorFieldPosterior(estimator, prior(), **posterior_options)
