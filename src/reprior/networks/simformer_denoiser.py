"""A Simformer that is bound to observations.

`Bound` holds what depends on the observations alone and is computed once. `SimformerDenoiser` sorts states and noise
levels of any shape by observation and evaluates them in parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reprior.diffusion.denoiser import Denoiser
from reprior.errors import InputError
from reprior.networks.attention import Memory
from reprior.networks.gaussian_guess import Conditional
from reprior.networks.tokens import DIFFUSED, Layout

if TYPE_CHECKING:
    from reprior.networks.simformer import SimformerBase

__all__ = ["Bound", "SimformerDenoiser"]

_TOKENS_AT_ONCE = 2048  # states are evaluated in parts of about this many tokens, which fit the cache


@dataclass(frozen=True)
class Bound:
    """The part of the network's input that depends on K observations alone, from `SimformerBase.bind`.

    Attributes:
        layout: where the variables are.
        guess: the Gaussian guess of the diffused variables.
        memory: keys and values of the given tokens in every layer; None without any, or with dense attention.
        given: the given tokens, with shape (K, T_c, w), for dense attention; else None.
        values: given values in the slots of the diffused tokens, with shape (K, 1, T_u, patch).
        fixed: the part of the diffused tokens that is the same for all states, with shape (1 or K, 1, T_u, w).
        bias: score bias of absent keys, with shape (K, 1, T_c + T_u), or None.
    """

    layout: Layout
    guess: Conditional
    memory: Memory | None
    given: Tensor | None
    values: Tensor
    fixed: Tensor
    bias: Tensor | None


class SimformerDenoiser(Denoiser):
    """A Simformer bound to K observations.

    Arguments:
        base: the network.
        x: standardised observations, with shape (K, m); NaN where missing.
        states: the state of each variable of (theta, x), with shape (d + m,).
    """

    def __init__(self, base: SimformerBase, x: Tensor, states: Tensor):
        self.base, self.x, self.states = base, x, states
        self.noise, self.s_min, self.s_max = base.noise, base.s_min, base.s_max
        self.observations = len(x)
        values = torch.cat([x.new_zeros(len(x), base.dim), x], -1)
        # An entry that is predicted is not missing: the sampler provides its noisy value.
        self.bound = base.bind(torch.where((states == DIFFUSED).to(x.device), 0.0, values), states)
        self.dim = len(self.bound.layout.variables)

    def select(self, k: int | list[int]) -> Denoiser:
        return SimformerDenoiser(self.base, self.x[[k] if isinstance(k, int) else k], self.states)

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        rows, levels = self._fold(z, s)
        return self._unfold(rows + levels**2 * self._score(rows, levels), z)

    def score(self, z: Tensor, s: Tensor) -> Tensor:
        # Not (mean - z) / s^2, which cancels for small s.
        return self._unfold(self._score(*self._fold(z, s)), z)

    def _score(self, rows: Tensor, levels: Tensor) -> Tensor:
        """The score in parts that fit the cache."""
        given = 0 if self.bound.given is None else self.bound.given.shape[1]
        tokens = self.observations * (given + len(self.bound.layout.diffused))
        size = max(1, _TOKENS_AT_ONCE // tokens)
        if rows.shape[1] <= size:
            return self.base.score(rows, levels, self.bound)
        shared = levels.shape[1] == 1
        parts = [
            self.base.score(rows[:, i : i + size], levels if shared else levels[:, i : i + size], self.bound)
            for i in range(0, rows.shape[1], size)
        ]
        return torch.cat(parts, 1)

    def _fold(self, z: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """z (*, K, D) as (K, N, D), and s likewise, with axes of length one where it does not vary."""
        s = torch.as_tensor(s, dtype=z.dtype, device=z.device)
        s = s.reshape(1) if s.ndim == 0 else s
        k = self.observations
        if z.shape[-1] != self.dim or (k > 1 and (z.ndim < 2 or z.shape[-2] != k)):
            raise InputError(f"z must have shape (*, {k}, {self.dim}); got {tuple(z.shape)}")
        if s.shape[-1] not in (1, self.dim):
            raise InputError(f"noise of shape {tuple(s.shape)} does not broadcast to z of shape {tuple(z.shape)}")
        if s.shape[-1] > 1 and self.noise == "scalar":
            raise InputError("this base was trained with noise='scalar'; one level per variable needs 'diagonal'")
        if s.numel() == s.shape[-1]:
            return _by_observation(z, k), s.reshape(1, 1, -1)
        return _by_observation(z, k), _by_observation(s.expand(*z.shape[:-1], s.shape[-1]), k)

    def _unfold(self, rows: Tensor, z: Tensor) -> Tensor:
        """(K, N, D) in the shape of z."""
        return (rows.transpose(0, 1) if self.observations > 1 else rows).reshape(z.shape)


def _by_observation(v: Tensor, k: int) -> Tensor:
    """(*, K, D) as (K, N, D)."""
    return v.reshape(-1, k, v.shape[-1]).transpose(0, 1) if k > 1 else v.reshape(1, -1, v.shape[-1])
