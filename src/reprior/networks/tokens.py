"""Tokens: which variable sits in which token, and how a token is made.

The variables are theta_1..theta_d, x_1..x_m. `theta_patch` neighbouring parameters share a token, and so do `patch`
neighbouring entries of x (see `Grid`); some slots of a token may be empty. Each variable is in one of three states:
absent (it takes no part), given (its value is known: noise level zero) or diffused (its noisy value is known, and its
denoised mean is wanted). A token with a diffused slot is a diffused token, though some of its slots may be given. A token
with given slots and no diffused ones is a given token. Other tokens are omitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

__all__ = ["ABSENT", "DIFFUSED", "GIVEN", "Grid", "Layout", "LearnedTokens", "PaperTokens"]

ABSENT, GIVEN, DIFFUSED = 0, 1, 2


@dataclass(frozen=True)
class Grid:
    """Which variable sits in which slot of which token.

    Attributes:
        dim: the number d of parameters.
        x_dim: the number m of entries of x.
        theta_patch: how many neighbouring parameters share a token.
        patch: how many neighbouring entries of x share a token.
    """

    dim: int
    x_dim: int
    theta_patch: int
    patch: int

    @property
    def tokens(self) -> int:
        """The number T of tokens."""
        return -(-self.dim // self.theta_patch) + -(-self.x_dim // self.patch)

    @property
    def slots(self) -> int:
        """The number of slots in a token."""
        return max(min(self.theta_patch, self.dim), min(self.patch, self.x_dim))

    @property
    def filled(self) -> Tensor:
        """Which slots hold a variable, with shape (T, slots)."""
        return self.to_slots(torch.ones(self.dim + self.x_dim, dtype=torch.bool))

    def to_slots(self, values: Tensor) -> Tensor:
        """Variables (*, d + m) in slots (*, T, slots); empty slots are zero."""
        if self.slots == 1:
            return values.unsqueeze(-1)
        theta, x = values[..., : self.dim], values[..., self.dim :]
        return torch.cat([self._fold(theta, self.theta_patch), self._fold(x, self.patch)], -2)

    def _fold(self, v: Tensor, patch: int) -> Tensor:
        patch = min(patch, v.shape[-1])
        parts = pad(v, (0, -v.shape[-1] % patch)).unflatten(-1, (-1, patch))
        return pad(parts, (0, self.slots - patch))


@dataclass(frozen=True)
class Layout:
    """Where the variables are, for one set of states.

    Attributes:
        variables: indices of the diffused variables, with shape (D,).
        diffused: indices of the diffused tokens, with shape (T_u,).
        given: indices of the given tokens, with shape (T_c,).
        states: the state of each slot, with shape (T, slots).
        source: for each slot of the diffused tokens, the place in z of its variable (0 if none), (T_u slots,).
        target: the slot of each diffused variable among those of the diffused tokens, with shape (D,).
        plain: whether slots and diffused variables are the same thing.
    """

    variables: Tensor
    diffused: Tensor
    given: Tensor
    states: Tensor
    source: Tensor
    target: Tensor
    plain: bool

    @staticmethod
    def build(states: Tensor, grid: Grid, device: torch.device) -> Layout:
        """The layout of states (d + m,)."""
        slots = grid.to_slots(states)
        diffused = (slots == DIFFUSED).any(-1)
        given = (slots == GIVEN).any(-1) & ~diffused
        asked = (slots[diffused] == DIFFUSED).flatten()
        target = asked.nonzero().squeeze(-1)
        source = (asked.long().cumsum(0) - 1).clamp(min=0) * asked
        return Layout(
            variables=(states == DIFFUSED).nonzero().squeeze(-1).to(device),
            diffused=diffused.nonzero().squeeze(-1).to(device),
            given=given.nonzero().squeeze(-1).to(device),
            states=slots.to(device),
            source=source.to(device),
            target=target.to(device),
            plain=bool(asked.all()),
        )

    def spread(self, v: Tensor) -> Tensor:
        """Diffused variables (*, D) in the slots of the diffused tokens, (*, T_u, slots), zero elsewhere."""
        slots = self.states.shape[-1]
        if self.plain:
            return v.unflatten(-1, (-1, slots))
        asked = (self.states[self.diffused] == DIFFUSED).flatten()
        return (v[..., self.source] * asked).unflatten(-1, (-1, slots))

    def collect(self, slots: Tensor) -> Tensor:
        """The inverse of `spread`."""
        flat = slots.flatten(-2)
        return flat if self.plain else flat[..., self.target]


class LearnedTokens(nn.Module):
    """Tokens that are linear in their values and in the states of their slots, each token with its own map.

    Arguments:
        tokens: the number T of tokens.
        slots: the number of slots in a token.
        width: the width w of a token.
        layers: the number of layers that the noise enters.
    """

    def __init__(self, tokens: int, slots: int, width: int, layers: int):
        super().__init__()
        self.layers = layers
        self.name = nn.Parameter(torch.randn(tokens, width))
        self.value = nn.Parameter(torch.randn(tokens, slots, width) * slots**-0.5)
        self.guess = nn.Parameter(torch.randn(tokens, slots, width) * slots**-0.5)
        self.centre = nn.Parameter(torch.randn(tokens, slots, width) * slots**-0.5)
        self.state = nn.Parameter(torch.randn(2, tokens, slots, width) * slots**-0.5)
        self.noise = nn.Sequential(nn.Linear(2 * slots, 32), nn.SiLU(), nn.Linear(32, (layers + 1) * width))
        self.head = nn.Parameter(torch.zeros(tokens, width, slots))
        self.head_bias = nn.Parameter(torch.zeros(tokens, slots))

    def fixed(self, index: Tensor, states: Tensor, centre: Tensor | None) -> Tensor:
        """The part of the tokens that does not depend on noisy values, with shape (*, T', w).

        Arguments:
            index: which tokens, with shape (T',).
            states: the slots' states, with shape (*, T', slots).
            centre: the guess from given values in the slots of diffused tokens, with shape (*, T', slots); None for given ones.
        """
        given, diffused = (states == GIVEN).to(self.name), (states == DIFFUSED).to(self.name)
        still = self.name[index] + _per_token(given, self.state[0][index])
        still = still + _per_token(diffused, self.state[1][index])
        return still if centre is None else still + _per_token(centre, self.centre[index])

    def embed(self, index: Tensor, values: Tensor, guess: Tensor | None, fixed: Tensor) -> Tensor:
        """Tokens, with shape (*, T', w).

        Arguments:
            index: which tokens, with shape (T',).
            values: values in the slots, zero where absent, with shape (*, T', slots).
            guess: the whitened residual of the Gaussian guess, in the slots of diffused tokens; None for given ones.
            fixed: the output of `fixed`.
        """
        h = fixed + _per_token(values, self.value[index])
        return h if guess is None else h + _per_token(guess, self.guess[index])

    def shift(self, features: Tensor) -> Tensor:
        """The shift by the noise of the tokens and then of every layer, with shape (*, layers + 1, w).

        Arguments:
            features: half the log of each slot's noise level and of its width, with shape (*, 2 slots).
        """
        return self.noise(features).unflatten(-1, (self.layers + 1, -1))

    def read(self, index: Tensor, h: Tensor) -> Tensor:
        """The network's output in each slot, with shape (*, T', slots), from final tokens (*, T', w)."""
        return _per_token(h, self.head[index]) + self.head_bias[index]


def _per_token(v: Tensor, weight: Tensor) -> Tensor:
    """Each token's own matrix: (*, T, a), (T, a, b) -> (*, T, b)."""
    if v.shape[-1] == 1:
        return v * weight.squeeze(-2)
    if weight.shape[-1] == 1:
        return (v * weight.squeeze(-1)).sum(-1, keepdim=True)
    return torch.einsum("...ta,tab->...tb", v, weight)


class PaperTokens(nn.Module):
    """Tokens of the public Simformer: [frozen orthogonal name 20 | scalar repeated 20 | given x learned vector 10].

    Where n neighbours share a token, they share the 20 places of the scalar, 20 // n for each, and each has a learned
    vector of its own that is added where it is given. The time enters every layer through a 128-d Gaussian Fourier
    embedding; one linear map reads all tokens.

    Arguments:
        filled: which slots of each token hold a variable, the first ones, with shape (T, slots).
        layers: the number of layers that the time enters.
    """

    WIDTH = 50
    PLACES = 20

    def __init__(self, filled: Tensor, layers: int):
        super().__init__()
        (tokens, slots), self.layers = filled.shape, layers
        name = nn.init.orthogonal_(torch.empty(tokens, 20))
        self.register_buffer("name", name / name.norm(dim=-1, keepdim=True) * 20**0.5)
        self.given = nn.Parameter(0.5 * torch.randn(slots * 10))
        self.register_buffer("frequencies", torch.randn(64))
        self.noise = nn.Linear(128, layers * self.WIDTH)
        self.head = nn.Linear(self.WIDTH, slots)
        owner = torch.arange(self.PLACES) // (self.PLACES // filled.sum(-1, keepdim=True))  # (T, places)
        places = owner.unsqueeze(-2) == torch.arange(slots).unsqueeze(-1)
        self.register_buffer("places", (places & filled.unsqueeze(-1)).float(), persistent=False)

    def fixed(self, index: Tensor, states: Tensor, centre: Tensor | None) -> Tensor:
        """As in `LearnedTokens`, with zeros in place of the scalar."""
        flag = (states == GIVEN).to(self.given) @ self.given.view(-1, 10)
        name = self.get_buffer("name")[index].expand(*flag.shape[:-1], 20)
        return torch.cat([name, torch.zeros_like(name), flag], -1)

    def embed(self, index: Tensor, values: Tensor, guess: Tensor | None, fixed: Tensor) -> Tensor:
        """As in `LearnedTokens`, with no use for the guess."""
        return fixed + pad(_per_token(values, self.get_buffer("places")[index]), (20, 10))

    def shift(self, time: Tensor) -> Tensor:
        """The shift by the time t of the tokens (zero) and then of every layer, (*, layers + 1, w), from t (*, 1)."""
        angles = 2 * math.pi * time * self.get_buffer("frequencies")
        shift = self.noise(torch.cat([angles.cos(), angles.sin()], -1)).unflatten(-1, (self.layers, -1))
        return pad(shift, (0, 0, 1, 0))

    def read(self, index: Tensor, h: Tensor) -> Tensor:
        """As in `LearnedTokens`."""
        return self.head(h)
