"""The Simformer base: a transformer over parameters and data that conditions on any subset of them.

Every variable of (theta, x) is absent, given or diffused (see `reprior.networks.tokens`). With v the diffused ones and
z = v + s eps, the network F gives the denoised mean E[v | z, given] in one of two ways:

    output="mean":   D = D_0(z) + open F,      D_0 and open: the Gaussian guess (`reprior.networks.gaussian_guess`)
    output="score":  D = z + s F

The second is the paper's: F / sigma_t is the score of the variance-preserving state theta_t = z / sqrt(1 + s^2). Both
are trained on the squared error in units that make the target of F of unit size. Training draws the states at random
(`MaskMix`), so one network answers theta | x, theta | part of x, and the posterior predictive (theta, rest of x) |
part of x. A missing entry of x (NaN) is absent: no token, no loss.

With attention="shared" (the default) given tokens attend to given ones alone and carry no time, so x is encoded once
per observation; attention="dense" lets every token attend to every other and recomputes x in each step.

`PAPER_SIMFORMER` holds the paper's settings; the Simformer is Gloeckler et al. 2024, arXiv 2404.09636.
"""

from __future__ import annotations

from dataclasses import asdict

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from reprior.diffusion.denoiser import Base, Denoiser, NoiseKind
from reprior.errors import InputError
from reprior.networks.attention import Transformer
from reprior.networks.difficulty import Difficulty
from reprior.networks.gaussian_guess import GaussianGuess
from reprior.networks.masks import draw_states
from reprior.networks.simformer_denoiser import Bound, SimformerDenoiser
from reprior.networks.simformer_settings import PAPER_SIMFORMER, SimformerSettings
from reprior.networks.tokens import (
    ABSENT,
    DIFFUSED,
    GIVEN,
    Grid,
    Layout,
    LearnedTokens,
    PaperTokens,
)

__all__ = ["PAPER_SIMFORMER", "SimformerBase", "SimformerSettings"]

HELD_OUT_GROUPS = 8  # groups of held-out rows, each with its own mask: the loss then has the masks in proportion
_FAR = -1e9  # attention score of an absent key: its softmax weight is zero


class SimformerBase(Base):
    """E[v | z, given] for any split of (theta, x) into diffused and given variables.

    Arguments:
        dim: the number d of parameters.
        x_dim: the number m of entries of x.
        settings: the architecture and how it is trained.
    """

    takes_missing = True

    def __init__(self, dim: int, x_dim: int, settings: SimformerSettings):
        super().__init__()
        self.dim, self.x_dim, self.settings = dim, x_dim, settings
        self.noise: NoiseKind = settings.noise
        self.s_min, self.s_max = settings.range()
        self.guess = GaussianGuess(dim + x_dim)
        self.grid = Grid(dim, x_dim, settings.theta_patch, settings.patch)
        self.tokens: LearnedTokens | PaperTokens
        if settings.tokens == "paper":
            self.tokens = PaperTokens(self.grid.filled, settings.layers)
        else:
            self.tokens = LearnedTokens(self.grid.tokens, self.grid.slots, settings.width, settings.layers)
        self.layers = Transformer(
            settings.width,
            settings.layers,
            settings.heads,
            settings.head_size,
            settings.widening,
            normalised=settings.tokens == "paper",
        )
        self.difficulty = Difficulty(dim + x_dim) if settings.weigh else None

    def prepare(self, theta: Tensor, x: Tensor, steps: int = 3_000, kept: Tensor | None = None) -> tuple[Tensor, ...]:
        if self.settings.output == "mean":
            rows = slice(None) if kept is None else kept
            self.guess.fit(torch.cat([theta[rows], x[rows]], -1), self.dim)
        return theta, x

    def loss_of(self, rows: tuple[Tensor, ...], generator: Generator) -> Tensor:
        theta, x = rows
        return self.loss(theta, x, generator)

    def bind(self, values: Tensor, states: Tensor) -> Bound:
        """Encodes what is given.

        Arguments:
            values: theta and x, with shape (K, d + m); NaN where missing. Values of diffused variables are not read.
            states: the state of each variable, with shape (d + m,).
        """
        layout = Layout.build(states, self.grid, values.device)
        guess = self.guess(values, (states == GIVEN).nonzero().squeeze(-1).to(values.device), layout.variables)
        missing = torch.isnan(values)
        slots = self.grid.to_slots(torch.where(missing, 0.0, values)) * (layout.states == GIVEN)
        slot_states, bias = layout.states[None], None
        if bool((missing & (states != ABSENT).to(missing.device)).any()):
            slot_states = torch.where(self.grid.to_slots(missing), ABSENT, layout.states)
            order = torch.cat([layout.given, layout.diffused])
            bias = torch.where((slot_states[:, order] == ABSENT).all(-1), _FAR, 0.0).to(values)
        given = memory = None
        if len(layout.given):
            fixed = self.tokens.fixed(layout.given, slot_states[:, layout.given], None)
            given = self.tokens.embed(layout.given, slots[:, layout.given], None, fixed)
            if self.settings.attention == "shared":
                memory = self.layers.encode(given, None if bias is None else bias[:, : len(layout.given)])
                given = None
        own = slot_states[:, None, layout.diffused]
        return Bound(
            layout=layout,
            guess=guess,
            memory=memory,
            given=given,
            values=slots[:, None, layout.diffused],
            fixed=self.tokens.fixed(layout.diffused, own, layout.spread(guess.centre)),
            bias=None if bias is None else bias.unsqueeze(1),
        )

    def network(self, off: Tensor, s: Tensor, white: Tensor | None, bound: Bound) -> Tensor:
        """F, with shape (K, N, D).

        Arguments:
            off: z - m, with shape (K, N, D).
            s: noise levels, with shape (K or 1, N or 1, D or 1).
            white: P (z - m) of the Gaussian guess, scaled to unit variance, with shape (K, N, D), or None without it. In
                z - m itself the directions that the data determine well are too small to see.
            bound: what `bind` gave for the K observations.
        """
        layout, width = bound.layout, bound.guess.width
        values = layout.spread(off * (width**2 + s**2) ** -0.5) + bound.values
        guess = None if white is None else layout.spread(white)
        h = self.tokens.embed(layout.diffused, values, guess, bound.fixed)
        shift = self.tokens.shift(self._noise_features(s, bound))
        given = 0
        if bound.given is not None:  # dense: the given tokens are tokens like the others
            given = bound.given.shape[1]
            h = torch.cat([bound.given[:, None].expand(-1, h.shape[1], -1, -1), h], -2)
            if self.settings.tokens == "learned":  # only diffused tokens get the noise; in the paper all tokens do
                shift = pad(shift, (0, 0, 0, 0, given, 0))
        h = self.layers.decode(h, shift, bound.memory, bound.bias)
        return layout.collect(self.tokens.read(layout.diffused, h[..., given:, :]))

    def score(self, z: Tensor, s: Tensor, bound: Bound) -> Tensor:
        """grad log p(z | given) = (D - z) / s^2, with shape (K, N, D)."""
        off = z - bound.guess.centre
        if self.settings.output == "score":
            return self.network(off, s, None, bound) / s
        pulled, white, scale = bound.guess.denoise(off, s)
        return self.network(off, s, white, bound) * (scale / s**2) - pulled

    def _noise_features(self, s: Tensor, bound: Bound) -> Tensor:
        """The input of a token from the noise, with shape (K or 1, N or 1, T_u or 1, features)."""
        if self.settings.tokens == "paper":
            return self.settings.vp.t(s[..., :1]).unsqueeze(-2)
        levels = bound.layout.spread((s / bound.guess.width).log() / 2)
        widths = bound.layout.spread(bound.guess.width.log() / 2)
        return torch.cat([levels, widths.expand_as(levels)], -1)

    def condition(self, x: Tensor, predict: bool = False) -> Denoiser:
        if x.ndim != 2 or x.shape[1] != self.x_dim:
            raise InputError(f"x must have shape (K, {self.x_dim}); got {tuple(x.shape)}")
        missing = torch.isnan(x)
        gone = missing.all(0)
        if predict and bool((missing.any(0) != gone).any()):
            raise InputError("predict needs the same missing entries in every row of x; ask for each pattern alone")
        if not predict and bool(missing.any()) and self.settings.absent == 0:
            raise InputError(
                "x has missing entries (NaN) and this base was trained with absent=0; "
                "use predict=True, or train with absent > 0"
            )
        theta = torch.full((self.dim,), DIFFUSED)
        states = torch.cat([theta, torch.where(gone.cpu(), DIFFUSED if predict else ABSENT, GIVEN)])
        return SimformerDenoiser(self, x, states)

    def loss(self, theta: Tensor, x: Tensor, generator: Generator) -> Tensor:
        """The denoising loss per row: the mean (output "score": the sum) over its diffused variables.

        Arguments:
            theta: standardised parameters, with shape (n, d).
            x: standardised observations, with shape (n, m); NaN where missing.
            generator: draws the states and the noise.
        """
        values, settings = torch.cat([theta, x], -1), self.settings
        start = float(torch.rand((), generator=generator))
        groups = min(settings.groups if self.training else HELD_OUT_GROUPS, len(values))
        losses = []
        for i, rows in enumerate(values.tensor_split(groups)):
            # One point in each stratum: a mask with probability 1/groups or more is in every batch.
            name = settings.masks.pick((start + i) / groups)
            absent = float(torch.rand((), generator=generator)) < settings.absent
            states = draw_states(name, self.dim, self.x_dim, settings.patch, absent, generator)
            losses.append(self.group_loss(rows, states, generator))
        return torch.cat(losses)

    def group_loss(self, values: Tensor, states: Tensor, generator: Generator) -> Tensor:
        """The loss of rows (n, d + m) that share the states (d + m,)."""
        bound = self.bind(values, states)
        v = values[:, bound.layout.variables].unsqueeze(1)
        counts = ~torch.isnan(v)
        off = torch.where(counts, v, bound.guess.centre) - bound.guess.centre
        # x is encoded once for several noisy states of a row, and for more of them where more tokens are given.
        repeats, layout = self.settings.repeats, bound.layout
        states_per_row = max(1, min(repeats, repeats * len(layout.given) // len(layout.diffused)))
        off = off.expand(-1, states_per_row, -1)
        s = self.settings.draw_levels(bound.guess.width.expand_as(off), generator)
        eps = torch.randn(off.shape, generator=generator).to(v)
        noisy = off + s * eps
        if self.settings.output == "score":
            error = (self.network(noisy, s, None, bound) + eps).square() * counts
            return error.sum(-1).mean(-1)
        pulled, white, scale = bound.guess.denoise(noisy, s)
        target = (s**2 * pulled - s * eps) / scale  # (v - D_0) / open
        error = (self.network(noisy, s, white, bound) - target).square() * counts
        error = error.sum(-1) / counts.sum(-1).clamp(min=1)
        if self.difficulty is not None:
            noise = (s / bound.guess.width).log().mean(-1).expand_as(error)
            error = self.difficulty.weigh(error, self.difficulty(values, (states == GIVEN).to(v.device), noise))
        return error.mean(-1)

    def config(self) -> dict:
        return {
            "network": "simformer",
            "dim": self.dim,
            "x_dim": self.x_dim,
            "settings": asdict(self.settings),
        }
