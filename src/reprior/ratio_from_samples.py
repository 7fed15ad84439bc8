"""log q/p from samples of q: a classifier learns to tell samples of q from samples of p.

It minimises E_q[softplus(-a)] + E_p[softplus(a)] over the logit a(theta). The minimum is at a = log q(theta) / p(theta)
(Cranmer, Pavez and Louppe 2015, arXiv 1506.02169). The network has three hidden layers of 128 SiLU units, as in the paper
that this library follows ("Guidance for Prior Change via Density Ratio Estimation").
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from reprior.networks.fit import Training, fit
from reprior.seeds import seeded
from reprior.standardizer import Standardizer

__all__ = ["RatioNetwork", "learn_log_ratio"]

# With the usual few thousand samples a network could memorise them: hence some weight decay, and early stopping.
DEFAULT = Training(steps=3_000, batch=2_048, learning_rate=1e-3, weight_decay=1e-4, evaluate_every=200, patience=6)


class RatioNetwork(nn.Module):
    """A learned log q/p of parameters in the user's units, theta with shape (*, d) -> (*).

    Arguments:
        scale: the standardisation of theta.
        width: units of a hidden layer.
        layers: number of hidden layers.
    """

    scale: Standardizer

    def __init__(self, scale: Standardizer, width: int = 128, layers: int = 3):
        super().__init__()
        self.scale, self.width, self.layers = scale, width, layers
        sizes = [len(scale.shift)] + [width] * layers
        parts: list[nn.Module] = []
        for a, b in pairwise(sizes):
            parts += [nn.Linear(a, b), nn.SiLU()]
        self.net = nn.Sequential(*parts, nn.Linear(width, 1))

    def forward(self, theta: Tensor) -> Tensor:
        u = self.scale.forward(theta).to(next(self.net.parameters()).dtype)
        return self.net(u)[..., 0].to(theta.dtype)

    def config(self) -> dict[str, Any]:
        """The plain data that rebuilds the network."""
        return {"width": self.width, "layers": self.layers}


def learn_log_ratio(
    target: Tensor,
    prior: Tensor,
    scale: Standardizer,
    seed: int,
    training: Training = DEFAULT,
    progress: bool = False,
) -> RatioNetwork:
    """Learns log q/p from samples.

    Arguments:
        target: samples of q, with shape (n, d).
        prior: samples of p, with shape (n', d); in each step as many are drawn from them as from those of q.
        scale: the standardisation of theta.
        seed: the same seed gives the same network.
        training: the training settings.
        progress: whether to show a progress bar.
    """
    with seeded(seed):
        network = RatioNetwork(scale)
    generator = torch.Generator().manual_seed(seed)
    target = target[torch.randperm(len(target), generator=generator)]
    cut_q, cut_p = (
        max(1, int(training.validation * len(target))),
        max(1, int(training.validation * len(prior))),
    )
    held_q, kept_q, held_p, kept_p = target[:cut_q], target[cut_q:], prior[:cut_p], prior[cut_p:]

    def logistic(module: nn.Module, q: Tensor, p: Tensor) -> Tensor:
        return softplus(-module(q)).mean() + softplus(module(p)).mean()

    def loss(module: nn.Module, rows: Tensor, generator: torch.Generator) -> Tensor:
        other = torch.randint(len(kept_p), rows.shape, generator=generator)
        return logistic(module, kept_q[rows], kept_p[other])

    fit(
        network,
        loss,
        lambda module: float(logistic(module, held_q, held_p)),
        len(kept_q),
        training,
        seed,
        label="ratio from samples",
        progress=progress,
    )
    return network.requires_grad_(False)
