"""Metropolis moves of a population: proposals along differences of other members (ter Braak 2006).

The population is split in two halves. A member of one half proposes theta + gamma (a - b) + a little noise, with a and b
from the other half, and accepts by the target's density, so each move leaves the target invariant, with nothing to tune:
the differences have the target's own shape. gamma = 2.38 / sqrt(2 d), and 1 in a tenth of the moves, which jumps
between modes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

__all__ = ["difference_moves"]

JUMPS = 0.1  # the fraction of moves that may jump between modes, as ter Braak (2006) has it


def difference_moves(
    log_f: Callable[[Tensor], Tensor], theta: Tensor, moves: int, generator: Generator
) -> tuple[Tensor, float]:
    """Moves a population towards a target and within it.

    Arguments:
        log_f: the target's log-density up to a constant, (n, d) -> (n,); -inf where it has no mass.
        theta: the population, with shape (n, d).
        moves: the number of moves of every member.
        generator: the source of randomness.

    Returns: the population after the moves, and the fraction of moves that were accepted.
    """
    n, d = theta.shape
    theta = theta[torch.randperm(n, generator=generator)]
    halves = [theta[: n // 2], theta[n // 2 :]]
    logs = [log_f(half) for half in halves]
    tiny = 1e-3 * theta.std(0)
    accepted = 0
    for _ in range(moves):
        for mine, others in ((0, 1), (1, 0)):
            here, pool = halves[mine], halves[others]
            a, b = (torch.randint(len(pool), (len(here),), generator=generator) for _ in range(2))
            jump = torch.rand(len(here), 1, generator=generator) < JUMPS
            gamma = torch.where(jump, torch.ones(()), torch.tensor(2.38 / (2 * d) ** 0.5)).to(here)
            noise = tiny * torch.randn(here.shape, generator=generator).to(here)
            there = here + gamma * (pool[a] - pool[b]) + noise
            value = log_f(there)
            luck = torch.rand(len(here), generator=generator).log().to(value)
            take = luck < value - logs[mine]
            halves[mine] = torch.where(take.unsqueeze(-1), there, here)
            logs[mine] = torch.where(take, value, logs[mine])
            accepted += int(take.sum())
    return torch.cat(halves), accepted / max(1, moves * n)
