"""Which variables are given, diffused or absent in the training of a Simformer.

First the kind of mask is drawn, with the probabilities of `MaskMix`; then the states of all variables of (theta, x). Random
masks keep the neighbours of a patch together half of the time, so that training has gaps in a series, whole tokens
and single entries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Generator, Tensor

from reprior.errors import InputError
from reprior.networks.tokens import ABSENT, DIFFUSED, GIVEN

__all__ = ["MaskMix", "draw_states"]


@dataclass(frozen=True)
class MaskMix:
    """The probability of each kind of conditioning in training; they sum to one.

    Attributes:
        posterior: theta diffused, x given.
        joint: all diffused.
        likelihood: x diffused, theta given.
        predictive: theta diffused; each x given with a probability that is itself uniform in [0, 1].
        forecast: theta diffused; the start of x given, up to an entry drawn uniformly: for series that go on.
        random: each variable given with a probability that is itself uniform in [0, 1].
        random_3: each variable given with probability 0.3.
        random_7: each variable given with probability 0.7.
    """

    posterior: float = 0.8
    joint: float = 0.02
    likelihood: float = 0.02
    predictive: float = 0.12
    random: float = 0.04
    random_3: float = 0.0
    random_7: float = 0.0
    forecast: float = 0.0

    def __post_init__(self) -> None:
        shares = self.shares()
        if min(shares.values()) < 0 or not math.isclose(sum(shares.values()), 1, abs_tol=1e-6):
            raise InputError(f"mask probabilities must be 0 or more and sum to 1; got {shares}")

    def shares(self) -> dict[str, float]:
        """The probabilities by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def pick(self, point: float) -> str:
        """The name whose interval of cumulative probability holds ``point`` in [0, 1)."""
        total, picked = 0.0, "posterior"
        for name, probability in self.shares().items():
            total += probability
            picked = name if probability > 0 else picked  # where rounding leaves the sum below point, the last one
            if point < total:
                break
        return picked


def draw_states(name: str, dim: int, x_dim: int, patch: int, absent: bool, generator: Generator) -> Tensor:
    """The state of every variable for one group of rows, with shape (d + m,).

    Arguments:
        name: a field of `MaskMix`.
        dim: the number d of parameters.
        x_dim: the number m of entries of x.
        patch: the number of neighbouring entries of x that random masks may keep together.
        absent: also make a random subset of x absent.
        generator: the source of randomness.
    """
    is_x = torch.arange(dim + x_dim) >= dim
    if name == "posterior":
        given = is_x
    elif name == "joint":
        given = torch.zeros_like(is_x)
    elif name == "likelihood":
        given = ~is_x
    elif name == "forecast":
        start = int(torch.randint(1, x_dim + 1, (), generator=generator))
        given = is_x & (torch.arange(dim + x_dim) < dim + start)
    else:
        probability = {"random_3": 0.3, "random_7": 0.7}.get(name)
        given = _subset(dim, x_dim, patch, probability, generator)
        given = given & is_x if name == "predictive" else given
    states = torch.where(given, GIVEN, DIFFUSED)
    if absent:
        states = torch.where(is_x & _subset(dim, x_dim, patch, None, generator), ABSENT, states)
    if not bool((states == DIFFUSED).any()):
        states[int(torch.randint(dim, (), generator=generator))] = DIFFUSED
    return states


def _subset(dim: int, x_dim: int, patch: int, probability: float | None, generator: Generator) -> Tensor:
    """A random subset of the variables, each with the same probability (itself uniform if None), with shape (d + m,)."""
    # Half of the time neighbours in a patch stay together: gaps in a series, and whole tokens.
    rate = float(torch.rand((), generator=generator)) if probability is None else probability
    run = patch if float(torch.rand((), generator=generator)) < 0.5 else 1
    theta = torch.rand(dim, generator=generator) < rate
    x = (torch.rand(-(-x_dim // run), generator=generator) < rate).repeat_interleave(run)[:x_dim]
    return torch.cat([theta, x])
