"""The Simformer base: a transformer over parameters and data that conditions on any subset of them.

Every variable of (theta, x) is absent, given or diffused (see `reprior.networks.tokens`). With v the diffused ones,
z = v + s eps and "given" the rest, the network F gives the denoised mean E[v | z, given] in one of two ways:

    output="mean":   D = c_skip z + c_out F(c_in z, log s)      (EDM weights; see `reprior.networks.noise`)
    output="score":  D = z + s F(theta_t, t)                    (score of theta_t = F / sigma_t, the paper's)

where theta_t = c_in z = z / sqrt(1 + s^2) is the variance-preserving state. Both are trained on |D - v|^2 / weight,
with the weight that makes the target of F of unit size. Training draws the states at random: posterior, joint,
likelihood and random masks (`MaskMix`), so that one network answers theta | x, theta | part of x, and
(theta, rest of x) | part of x, the posterior predictive. A missing entry of x (NaN) is absent: no token, no loss.

With attention="shared" (the default) given tokens attend to given ones alone and carry no time, so x is encoded once
per observation; attention="dense" lets every token attend to every other and recomputes x in each step.

The paper's settings are `PAPER_SIMFORMER` (Gloeckler et al. 2024 is its source, arXiv 2404.09636).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from reprior.diffusion.denoiser import Base, Denoiser, NoiseKind
from reprior.diffusion.schedule import VP
from reprior.errors import InputError
from reprior.networks.attention import Memory, Transformer
from reprior.networks.noise import Noise, NoiseLaw
from reprior.networks.tokens import (
    ABSENT,
    DIFFUSED,
    GIVEN,
    Layout,
    LearnedTokens,
    MaskMix,
    PaperTokens,
    draw_states,
    to_slots,
    token_count,
)

__all__ = ["PAPER_SIMFORMER", "SimformerBase", "SimformerSettings"]

_FAR = -1e9  # the score of an absent key
_TOKENS_AT_ONCE = 2048  # states are evaluated in parts of about this many tokens, which fit the cache


@dataclass(frozen=True)
class SimformerSettings:
    """Settings of the Simformer base.

    Attributes:
        noise: "scalar", or "diagonal" (one level per variable).
        attention: "shared" (x is encoded once per observation) or "dense" (every token attends to every other).
        layers: the number of layers.
        width: the width of a token.
        heads: the number of attention heads.
        head_size: the size of a head.
        widening: the hidden width of the MLPs, in units of the width.
        patch: how many neighbouring entries of x share a token.
        masks: how often each kind of conditioning is trained.
        groups: a batch is split into this many groups of rows, each with states of its own.
        absent: the share of groups in which a random subset of x is absent.
        tokens: "learned" or "paper" (see `reprior.networks.tokens`).
        output: "mean" (EDM weights) or "score" (divided by sigma_t).
        levels: training noise: "lognormal" (the `law`) or "vp" (uniform VP time).
        law: the log-normal law of the noise (its kind follows `noise`).
        vp: the VP schedule of "vp" levels and of the time that "paper" tokens are told.
    """

    noise: NoiseKind = "scalar"
    attention: Literal["shared", "dense"] = "shared"
    layers: int = 4
    width: int = 64
    heads: int = 4
    head_size: int = 16
    widening: int = 3
    patch: int = 1
    masks: MaskMix = field(default_factory=MaskMix)
    groups: int = 2
    absent: float = 0.2
    tokens: Literal["learned", "paper"] = "learned"
    output: Literal["mean", "score"] = "mean"
    levels: Literal["lognormal", "vp"] = "lognormal"
    law: NoiseLaw = field(default_factory=NoiseLaw)
    vp: VP = field(default_factory=VP)

    def __post_init__(self) -> None:
        _one_of("noise", self.noise, ("scalar", "diagonal"))
        _one_of("attention", self.attention, ("shared", "dense"))
        _one_of("tokens", self.tokens, ("learned", "paper"))
        _one_of("output", self.output, ("mean", "score"))
        _one_of("levels", self.levels, ("lognormal", "vp"))
        for name in ("layers", "width", "heads", "head_size", "widening", "patch", "groups"):
            if getattr(self, name) < 1:
                raise InputError(f"simformer {name} must be at least 1; got {getattr(self, name)}")
        if not 0 <= self.absent <= 1:
            raise InputError(f"simformer absent must lie in [0, 1]; got {self.absent}")
        if self.tokens == "paper" and (self.noise, self.patch, self.width) != (
            "scalar",
            1,
            PaperTokens.WIDTH,
        ):
            got = f"noise={self.noise!r}, patch={self.patch}, width={self.width}"
            raise InputError(
                f"tokens='paper' need noise='scalar', patch=1 and width={PaperTokens.WIDTH}; got {got}"
            )
        object.__setattr__(self, "law", NoiseLaw(**{**asdict(self.law), "kind": self.noise}))

    @classmethod
    def from_config(cls, data: dict[str, Any]) -> SimformerSettings:
        """The settings from their plain data, the inverse of `dataclasses.asdict`."""
        parts = {"masks": MaskMix(**data["masks"]), "law": NoiseLaw(**data["law"]), "vp": VP(**data["vp"])}
        return cls(**{**data, **parts})


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"simformer {name} {value!r} is unknown; allowed: {', '.join(allowed)}")


PAPER_SIMFORMER = SimformerSettings(
    attention="dense",
    layers=6,
    width=PaperTokens.WIDTH,
    heads=4,
    head_size=10,
    widening=3,
    groups=1,
    absent=0.0,
    masks=MaskMix(
        posterior=0.2, joint=0.2, likelihood=0.2, predictive=0.0, random=0.0, random_3=0.2, random_7=0.2
    ),
    tokens="paper",
    output="score",
    levels="vp",
)


@dataclass(frozen=True)
class Bound:
    """What K observations give to every state: computed once, in `SimformerBase.bind`.

    Attributes:
        layout: where the variables are.
        memory: keys and values of the given tokens in every layer; None without any, or with dense attention.
        given: the given tokens, with shape (K, T_c, w), for dense attention.
        values: given values in the slots of the diffused tokens, with shape (K, 1, T_u, patch).
        states: the states of those slots, with shape (T_u, patch) or (K, 1, T_u, patch).
        bias: score bias of absent keys, with shape (K, 1, T_c + T_u), or None.
    """

    layout: Layout
    memory: Memory | None
    given: Tensor | None
    values: Tensor
    states: Tensor
    bias: Tensor | None


class SimformerBase(Base):
    """E[v | z, given] for any split of (theta, x) into diffused and given variables.

    Arguments:
        dim: the number d of parameters.
        x_dim: the number m of entries of x.
        settings: the architecture and how it is trained.
    """

    def __init__(self, dim: int, x_dim: int, settings: SimformerSettings):
        super().__init__()
        self.dim, self.x_dim, self.settings = dim, x_dim, settings
        self.noise: NoiseKind = settings.noise
        by_law = settings.levels == "lognormal"
        self.s_min = settings.law.s_min if by_law else settings.vp.level(settings.vp.t_min)
        self.s_max = settings.law.s_max if by_law else settings.vp.level(settings.vp.t_max)
        tokens = token_count(dim, x_dim, settings.patch)
        self.tokens: LearnedTokens | PaperTokens
        if settings.tokens == "paper":
            self.tokens = PaperTokens(tokens, settings.layers)
        else:
            levels = settings.patch if settings.noise == "diagonal" else 1
            self.tokens = LearnedTokens(tokens, settings.patch, settings.width, settings.layers, levels)
        self.layers = Transformer(
            settings.width, settings.layers, settings.heads, settings.head_size, settings.widening
        )

    def bind(self, values: Tensor, states: Tensor) -> Bound:
        """Encodes what is given.

        Arguments:
            values: theta and x, with shape (K, d + m); NaN where missing. Diffused ones are not read.
            states: the state of each variable, with shape (d + m,).
        """
        layout = Layout.build(states, self.dim, self.settings.patch, values.device)
        missing = torch.isnan(values)
        slots = to_slots(torch.where(missing, 0.0, values), self.dim, self.settings.patch)
        slots = slots * (layout.states == GIVEN)
        slot_states, bias = layout.states, None
        if bool((missing & (states != ABSENT).to(missing.device)).any()):
            gone = to_slots(missing, self.dim, self.settings.patch)
            slot_states = torch.where(gone, ABSENT, layout.states)
            order = torch.cat([layout.given, layout.diffused])
            bias = torch.where((slot_states[:, order] == ABSENT).all(-1), _FAR, 0.0).to(values)
        per_row = slot_states.ndim == 3
        tokens = memory = None
        if len(layout.given):
            own = slot_states[:, layout.given] if per_row else slot_states[layout.given]
            tokens = self.tokens.embed(layout.given, slots[:, layout.given], own)
            if self.settings.attention == "shared":
                memory = self.layers.encode(tokens, None if bias is None else bias[:, : len(layout.given)])
                tokens = None
        return Bound(
            layout,
            memory,
            tokens,
            slots[:, None, layout.diffused],
            slot_states[:, None, layout.diffused] if per_row else slot_states[layout.diffused],
            None if bias is None else bias[:, None],
        )

    def network(self, z_in: Tensor, s: Tensor, bound: Bound) -> Tensor:
        """F, with shape (K, N, D).

        Arguments:
            z_in: c_in z, with shape (K, N, D).
            s: noise levels, with shape (K or 1, N or 1, D or 1).
            bound: what `bind` gave for the K observations.
        """
        layout = bound.layout
        h = self.tokens.embed(layout.diffused, layout.spread(z_in) + bound.values, bound.states)
        shift = self.tokens.shift(self._told(s, layout))
        given = 0
        if bound.given is not None:  # dense: the given tokens are tokens like the others
            given = bound.given.shape[1]
            h = torch.cat([bound.given[:, None].expand(-1, h.shape[1], -1, -1), h], -2)
            if (
                self.settings.tokens == "learned"
            ):  # only diffused tokens are told the noise; the paper tells all
                shift = shift.expand(*shift.shape[:2], h.shape[2] - given, -1, -1)
                shift = torch.nn.functional.pad(shift, (0, 0, 0, 0, given, 0))
        h = self.layers.decode(h, shift, bound.memory, bound.bias)
        return layout.collect(self.tokens.read(layout.diffused, h[..., given:, :]))

    def _told(self, s: Tensor, layout: Layout) -> Tensor:
        """What a token is told of the noise, with shape (K or 1, N or 1, T_u or 1, levels)."""
        if self.settings.tokens == "paper":
            return self.settings.vp.t(s[..., :1]).unsqueeze(-2)
        if self.noise == "scalar":
            return (s[..., :1].log() / 2).unsqueeze(-2)
        logs = layout.spread((s.log() / 2).expand(*s.shape[:-1], len(layout.variables)))
        clean = (layout.states[layout.diffused] == GIVEN).to(s) * (torch.log(s.new_tensor(self.s_min)) / 2)
        return logs + clean

    def condition(self, x: Tensor, predict: bool = False) -> Denoiser:
        if x.ndim != 2 or x.shape[1] != self.x_dim:
            raise InputError(f"x must have shape (K, {self.x_dim}); got {tuple(x.shape)}")
        missing = torch.isnan(x)
        gone = missing.all(0)
        if predict and bool((missing.any(0) != gone).any()):
            raise InputError(
                "predict needs the same missing entries in every row of x; ask for each pattern alone"
            )
        if not predict and bool(missing.any()) and self.settings.absent == 0:
            raise InputError(
                "x has missing entries (NaN) and this base was trained with absent=0; "
                "use predict=True, or train with absent > 0"
            )
        theta = torch.full((self.dim,), DIFFUSED)
        states = torch.cat([theta, torch.where(gone.cpu(), DIFFUSED if predict else ABSENT, GIVEN)])
        return _BoundSimformer(self, x, states)

    def loss(self, theta: Tensor, x: Tensor, generator: Generator) -> Tensor:
        """The denoising loss per row: the mean (output "score": the sum) over its diffused variables.

        Arguments:
            theta: standardised parameters, with shape (n, d).
            x: standardised observations, with shape (n, m); NaN where missing.
            generator: draws the states and the noise.
        """
        values, settings = torch.cat([theta, x], -1), self.settings
        start = float(torch.rand((), generator=generator))
        losses = []
        for i, rows in enumerate(values.tensor_split(min(settings.groups, len(values)))):
            # One point in each stratum: a mask with share 1/groups or more is in every batch.
            name = settings.masks.pick((start + i) / settings.groups)
            absent = float(torch.rand((), generator=generator)) < settings.absent
            states = draw_states(name, self.dim, self.x_dim, settings.patch, absent, generator)
            losses.append(self._group_loss(rows, states, generator))
        return torch.cat(losses)

    def _group_loss(self, values: Tensor, states: Tensor, generator: Generator) -> Tensor:
        bound = self.bind(values, states)
        v = values[:, bound.layout.variables]
        counts = ~torch.isnan(v)
        v = torch.where(counts, v, 0.0)
        s = self._draw_levels(*v.shape, generator).to(v)
        eps = torch.randn(v.shape, generator=generator).to(v)
        noise = Noise(s)
        z_in, skip, out_scale = noise.precondition(v + s * eps)
        f = self.network(z_in.unsqueeze(1), s.unsqueeze(1), bound).squeeze(1)
        if self.settings.output == "score":
            return ((f + eps).square() * counts).sum(-1)
        return ((f - (v - skip) / out_scale).square() * counts).sum(-1) / counts.sum(-1).clamp(min=1)

    def _draw_levels(self, n: int, dim: int, generator: Generator) -> Tensor:
        if self.settings.levels == "lognormal":
            return self.settings.law.draw(n, dim, generator).levels
        vp = self.settings.vp
        t = vp.t_min + (vp.t_max - vp.t_min) * torch.rand(
            n, 1 if self.noise == "scalar" else dim, generator=generator
        )
        alike = torch.rand(n, 1, generator=generator) < self.settings.law.isotropic
        return vp.s(torch.where(alike, t[:, :1], t))

    def config(self) -> dict:
        return {
            "network": "simformer",
            "dim": self.dim,
            "x_dim": self.x_dim,
            "settings": asdict(self.settings),
        }


class _BoundSimformer(Denoiser):
    def __init__(self, base: SimformerBase, x: Tensor, states: Tensor):
        self.base, self.x = base, x
        self.noise, self.s_min, self.s_max = base.noise, base.s_min, base.s_max
        self.observations = len(x)
        self.bound = base.bind(torch.cat([x.new_zeros(len(x), base.dim), x], -1), states)
        self.dim = len(self.bound.layout.variables)

    def _evaluate(self, z: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """F, with the shape of z, and s with at least one dimension."""
        s = torch.as_tensor(s, dtype=z.dtype, device=z.device)
        s = s.reshape(1) if s.ndim == 0 else s
        if z.shape[-1] != self.dim or s.shape[-1] not in (1, self.dim):
            raise InputError(
                f"z needs a last dimension of {self.dim} and noise that broadcasts to it; "
                f"got shapes {tuple(z.shape)} and {tuple(s.shape)}"
            )
        if s.shape[-1] > 1 and self.noise == "scalar":
            raise InputError(
                "this base was trained with noise='scalar'; one level per variable needs 'diagonal'"
            )
        k = self.observations
        if k > 1 and (z.ndim < 2 or z.shape[-2] != k):
            raise InputError(
                f"z must have shape (*, {k}, {self.dim}) for {k} observations; got {tuple(z.shape)}"
            )
        z_in = z * (1 + s**2) ** -0.5
        rows, levels = self._fold(z_in), s.reshape(1, 1, -1)
        if s.numel() > s.shape[-1]:
            levels = self._fold(s.expand(*z.shape[:-1], s.shape[-1]))
        size = max(1, _TOKENS_AT_ONCE // (k * self._tokens()))
        parts = [
            self.base.network(
                part, levels if levels.shape[1] == 1 else levels[:, i * size : (i + 1) * size], self.bound
            )
            for i, part in enumerate(rows.split(size, 1))
        ]
        f = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
        return (f.transpose(0, 1) if k > 1 else f).reshape(z.shape), s

    def _fold(self, v: Tensor) -> Tensor:
        """(*, K, D) as (K, N, D)."""
        k = self.observations
        return v.reshape(-1, k, v.shape[-1]).transpose(0, 1) if k > 1 else v.reshape(1, -1, v.shape[-1])

    def _tokens(self) -> int:
        given = 0 if self.bound.given is None else self.bound.given.shape[1]
        return len(self.bound.layout.diffused) + given

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        f, s = self._evaluate(z, s)
        if self.base.settings.output == "score":
            return z + s * f
        var = 1 + s**2
        return z / var + s * var**-0.5 * f

    def score(self, z: Tensor, s: Tensor) -> Tensor:
        # (mean - z) / s^2 with the cancellation done on paper: exact for small s.
        f, s = self._evaluate(z, s)
        if self.base.settings.output == "score":
            return f / s
        var = 1 + s**2
        return f / (s * var**0.5) - z / var
