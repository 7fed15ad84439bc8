"""Rejection sampling with the supremum found on the way: exact draws without duplicates.

To draw from f / Z with proposals g and weights w = f/g, a proposal theta_i with its own uniform u_i is kept
when

    log u_i < log w_i - M,       M = max of log w over ALL proposals so far.

Keeping every u_i means that M may rise later: earlier proposals are then judged again, by the same u_i, so
the kept ones are always those that a sampler told M from the start would keep. What is left of a wrong bound
is the mass where w exceeds the largest of (at least 16,384) weights: of order 1/16,384 of the posterior or
less.

References:
    Caffo, Booth, Davis (2002), Empirical supremum rejection sampling, Biometrika 89.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from reprior.errors import InputError

__all__ = ["Proposal", "effective_size", "rejection_sample"]

Proposal = Callable[[int, np.random.Generator], tuple[Tensor, Tensor]]
"""(count, rng) -> theta (count, k) and log w (count,); log w = -inf where the target has no mass."""

_PILOT = 16_384
_CHUNK = 262_144
_POOR = 0.005
_LIMIT = 100_000_000


def rejection_sample(
    proposals: Sequence[Proposal],
    n: int,
    rng: np.random.Generator,
    fallbacks: Sequence[Callable[[np.random.Generator], Proposal]] = (),
) -> Tensor:
    """n independent draws from the target, through the proposal whose weights are most even in a pilot run.

    Arguments:
        proposals: ways to propose, each with its own weights f/g (each up to its own constant).
        n: the number of draws.
        fallbacks: proposals that cost something to build; built once the others accept less than one in 200.

    Returns: theta, with shape (n, k).
    """
    best, pool = _pilot(proposals, rng)
    while len(pool) < n and pool.proposed < _LIMIT:
        if pool.rate < _POOR and len(fallbacks) > 0:
            best, pool = _pilot([best, *(build(rng) for build in fallbacks)], rng)
            fallbacks = ()
            continue
        wanted = 1.1 * (n - len(pool)) / pool.rate
        pool.add(*best(int(np.clip(wanted, 1024, _CHUNK)), rng), rng)
    if len(pool) < n:
        raise InputError(
            f"the reference kept {len(pool)} of {pool.proposed} proposals and needs {n}: the prior and the "
            "likelihood of this observation hardly overlap"
        )
    return pool.theta[torch.from_numpy(rng.permutation(len(pool))[:n])]


class _Pool:
    """The proposals that survive the current bound M."""

    def __init__(self) -> None:
        self.bound = -np.inf
        self.proposed = 0
        self.theta = torch.empty(0)
        self.margin = torch.empty(0)  # log w - log u

    def __len__(self) -> int:
        return self.margin.shape[0]

    @property
    def rate(self) -> float:
        """The share of proposals that is kept, at least one."""
        return max(len(self), 1) / self.proposed

    def add(self, theta: Tensor, log_w: Tensor, rng: np.random.Generator) -> None:
        self.proposed += log_w.shape[0]
        self.bound = max(self.bound, float(log_w.max()))
        if self.bound == -np.inf:
            return
        margin = log_w + torch.from_numpy(rng.standard_exponential(log_w.shape[0]))
        kept = margin > self.bound
        if len(self) == 0:
            self.theta, self.margin = theta[kept], margin[kept]
            return
        still = self.margin > self.bound
        self.theta = torch.cat([self.theta[still], theta[kept]])
        self.margin = torch.cat([self.margin[still], margin[kept]])


def _pilot(proposals: Sequence[Proposal], rng: np.random.Generator) -> tuple[Proposal, _Pool]:
    """The proposal with the largest effective sample size, and what its pilot run kept."""
    count = _PILOT
    while count <= 64 * _PILOT:
        runs = [(propose, *propose(count, rng)) for propose in proposals]
        best, theta, log_w = max(runs, key=lambda run: effective_size(run[2]))
        if effective_size(log_w) > 0:
            pool = _Pool()
            pool.add(theta, log_w, rng)
            return best, pool
        count *= 8
    raise InputError("no parameter that the prior allows gives this observation: every proposal has density zero")


def effective_size(log_w: Tensor) -> float:
    """The effective sample size of weights exp(log_w), with shape (n,); zero if all are zero."""
    if float(log_w.max()) == -np.inf:
        return 0.0
    return float(1 / (torch.softmax(log_w, dim=0) ** 2).sum())
