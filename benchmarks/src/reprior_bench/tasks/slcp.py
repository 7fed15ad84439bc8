"""SLCP (simple likelihood, complex posterior): the mean and covariance of four 2-D Gaussian points.

    x_i ~ N(mu, Sigma), i = 1..4,    mu = (theta_1, theta_2),    rho = tanh theta_5,
    Sigma = [[theta_3^2, rho theta_3 theta_4], [rho theta_3 theta_4, theta_4^2]].

**Symmetry.** Sigma_12 = tanh(theta_5) theta_3 theta_4 keeps its value when BOTH theta_3 and theta_4 change
sign, or when one of them changes sign together with theta_5. These maps and the identity are a group of four
that leaves the likelihood unchanged. Flipping the sign of theta_3 or theta_4 alone does change it (the
correlation turns round), so the four modes of the paper, (+-theta_3, +-theta_4) with theta_5 untouched, are
not modes of the posterior: `Slcp.paper_reference` draws that variant, to show the difference.

**The reference.** d Sigma = 4 |Sigma| d theta_3 d theta_4 d theta_5, so the likelihood, normalised over
theta, is

    Sigma ~ inverse-Wishart(2, S),   mu | Sigma ~ N(mean x, Sigma / 4),   S: scatter matrix of the points,

with the four sign images equally likely: density l(theta). It is drawn directly, and accepted by the prior:
the exact posterior. Where the prior contradicts the data and that accepts too little, a second proposal is
fitted to the posterior (`slcp_proposal`); it contains l, which keeps the weights bounded, so this is exact
too.

References:
    Papamakarios, Sterratt, Murray (2019), Sequential neural likelihood.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from reprior import priors
from reprior.errors import InputError
from reprior.networks.embedding import Embedding
from reprior.networks.fit import Training
from reprior.networks.mlp import MLPSettings
from reprior_bench.tasks.base import THETA_ONLY, Recipe, Task
from reprior_bench.tasks.rejection import Proposal, rejection_sample
from reprior_bench.tasks.slcp_proposal import from_likelihood, from_mixture, log_likelihood

__all__ = ["Slcp"]


class Slcp(Task):
    """The SLCP task."""

    name = "slcp"
    title = "SLCP"
    dim = 5
    x_dim = 8
    parameters = ("mean_1", "mean_2", "scale_1", "scale_2", "correlation")
    reference_kind = "exact: rejection from the normalised likelihood (inverse Wishart), accepted by the prior"
    description = "Four points from a 2-D Gaussian: a posterior with four symmetric modes."
    recipes: ClassVar[Mapping[str, Recipe]] = {
        # x is a set of four points in the plane, and the posteriors are sharp: more steps.
        "mlp": Recipe(MLPSettings(embedding=Embedding(kind="set", item=2), guess="gaussian"), Training(steps=30_000)),
        "simformer": Recipe(replace(THETA_ONLY, patch=2, weigh=True), Training(steps=36_000, batch=128)),
    }

    def _priors(self, regime: str) -> tuple[Distribution, Distribution]:
        q = _diagonal((1.0, 0.5, 0.0, 0.0, 0.0), (0.5, 1.0, 1.0, 0.5, 1.0))
        if regime == "id":
            return _diagonal((0.0,) * 5, (1.0, 2.0, 1.0, 1.0, 1.0)), q
        return _diagonal((0.0, 2.0, 0.0, 0.0, 0.0), (0.5, 1.0, 0.6, 1.0, 0.8)), q

    def _simulate(self, theta: Tensor, rng: np.random.Generator) -> Tensor:
        noise = torch.from_numpy(rng.standard_normal((theta.shape[0], 4, 2)))
        rho = torch.tanh(theta[:, 4:5])
        first = theta[:, 0:1] + theta[:, 2:3] * noise[..., 0]
        turned = rho * noise[..., 0] + torch.sqrt(1 - rho**2) * noise[..., 1]
        second = theta[:, 1:2] + theta[:, 3:4] * turned
        return torch.stack([first, second], dim=-1).reshape(-1, 8)

    def _log_likelihood(self, theta: Tensor, x: Tensor) -> Tensor:
        return log_likelihood(theta, x)

    def _reference(self, x: Tensor, n: int, prior: Any, rng: np.random.Generator) -> Tensor:
        first = from_likelihood(x, prior)

        def from_prior(count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
            theta = priors.sample(prior, count, int(rng.integers(2**31))).double()
            return theta, self._log_likelihood(theta, x)

        def mixture(rng: np.random.Generator) -> Proposal:
            return from_mixture(x, prior, first, rng)

        return rejection_sample([first, from_prior], n, rng, fallbacks=[mixture])

    def paper_reference(
        self, x: Tensor, n: int, regime: str, prior: str | Distribution = "target", seed: int = 0
    ) -> Tensor:
        """The paper's reference: one mode, then independent sign flips of theta_3 and theta_4.

        The mode is theta_3 > 0, theta_4 > 0: draws of the exact posterior that lie there. The flips leave
        theta_5 alone, so half of the draws carry a correlation of the wrong sign. Arguments and result are
        those of `reference`.
        """
        kept = torch.empty(0, self.dim, device=x.device)
        for seed_i in np.random.SeedSequence(seed).generate_state(1000):
            theta = self.reference(x, 4 * n, regime, prior, seed=int(seed_i))
            kept = torch.cat([kept, theta[(theta[:, 2:4] > 0).all(-1)]])
            if kept.shape[0] >= n:
                break
        else:
            raise InputError("slcp: this prior has hardly any mass at theta_3 > 0, theta_4 > 0")
        flips = np.random.default_rng(seed).choice([-1.0, 1.0], size=(n, 2))
        kept[:n, 2:4] *= torch.as_tensor(flips, dtype=kept.dtype, device=x.device)
        return kept[:n]


def _diagonal(mean: tuple[float, ...], scale: tuple[float, ...]) -> Distribution:
    return Independent(Normal(torch.tensor(mean), torch.tensor(scale)), 1)
