"""The MLP base: a residual network of (z, noise, x) with EDM preconditioning, about a Gaussian guess.

A guess N(m(x), diag w(x)^2) is fitted before training (`reprior.networks.guess`). The network works on
(theta - m(x)) / w(x), which has mean zero and unit variance at every x.

The observation is embedded once; its embedding and the noise enter every block through a bias. Both biases are
computed once per observation and once per noise level, so a step of the sampler costs the blocks alone.

Where there are few simulations per entry of x, the network reads a summary in place of x (``axes``): the leading principal
components of x, and m(x).

The preconditioning is that of Karras et al. (2022, EDM, arXiv 2206.00364).
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from reprior.diffusion.denoiser import Base, Denoiser, NoiseKind
from reprior.errors import InputError
from reprior.networks.embedding import Embedding, build_embedding, summary_of
from reprior.networks.guess import Guess
from reprior.networks.noise import Noise, NoiseLaw, full_noise, noise_features
from reprior.networks.ridge import steady_axes

__all__ = ["MLPBase", "MLPSettings"]

ROWS = 20_000  # rows of x that are evaluated together, which bounds the memory
LEADING = 2.0  # the standard deviation that the leading principal component of x has as input of the network


@dataclass(frozen=True)
class MLPSettings:
    """Settings of the MLP base.

    Attributes:
        noise: "scalar", "diagonal" (one level per parameter) or "full" (a covariance).
        width: the hidden width.
        blocks: the number of residual blocks, of two layers each.
        embedding: the embedding network for x.
        guess: what is known before the diffusion: "linear" (a regression) or "gaussian" (a network's mean and width).
        axes: the network reads so many principal components of x, and the guess, in place of x; 0: x itself.
        members: networks whose mean is taken; each holds out its own fold of the simulations in training.
        law: how noise is drawn in training (its kind follows `noise`).
    """

    noise: NoiseKind = "diagonal"
    width: int = 160
    blocks: int = 3
    embedding: Embedding = field(default_factory=Embedding)
    guess: Literal["linear", "gaussian"] = "linear"
    axes: int = 0
    members: int = 1
    law: NoiseLaw = field(default_factory=NoiseLaw)

    def __post_init__(self) -> None:
        if self.width < 1 or self.blocks < 1:
            raise InputError(f"an MLP needs width and blocks of at least 1; got {self.width} and {self.blocks}")
        if self.guess not in ("linear", "gaussian"):
            raise InputError(f"guess {self.guess!r} is unknown; allowed: linear, gaussian")
        if self.axes < 0 or self.members < 1:
            raise InputError(
                f"an MLP needs axes of 0 or more, members of 1 or more; got {self.axes} and {self.members}"
            )
        if self.axes and self.embedding.kind not in ("none", "dense"):
            raise InputError(f"axes go with an embedding of kind none or dense; got {self.embedding.kind!r}")
        object.__setattr__(self, "law", NoiseLaw(**{**asdict(self.law), "kind": self.noise}))


class MLPBase(Base):
    """E[theta_0 | z, x] as a residual MLP.

    Arguments:
        dim: the number d of parameters.
        x_dim: the number m of entries of x.
        settings: the architecture and the training noise.
        embedding: the user's own embedding module for x, (n, m) -> (n, e), of which a copy is taken; else the one of the
            settings.
    """

    axes: Tensor
    axes_offset: Tensor

    def __init__(self, dim: int, x_dim: int, settings: MLPSettings, embedding: nn.Module | None = None):
        super().__init__()
        self.dim, self.x_dim, self.settings = dim, x_dim, settings
        self.noise: NoiseKind = settings.noise
        self.s_min, self.s_max = settings.law.s_min, settings.law.s_max
        self.own_embedding = embedding is not None
        if self.own_embedding and settings.axes:
            raise InputError(f"your own embedding reads x itself: it needs axes=0; got {settings.axes}")
        axes = min(settings.axes, x_dim)
        read = axes + dim if axes else x_dim
        self.embedding = build_embedding(settings.embedding, read) if embedding is None else deepcopy(embedding)
        with torch.no_grad():
            self.embedding.eval()
            features = self.embedding(torch.zeros(2, read)).shape[-1]
            self.embedding.train()
        summary = summary_of(settings.embedding, embedding is None)
        size = summary(torch.zeros(1, x_dim)).shape[1]
        copy = deepcopy(self.embedding) if settings.guess == "gaussian" else None
        self.guess = Guess(dim, summary, size, copy, features)
        if axes:
            self.register_buffer("axes", torch.zeros(axes, x_dim))  # in units of the spread along them
            self.register_buffer("axes_offset", torch.zeros(axes))
        noise_size = {"scalar": 1, "diagonal": dim, "full": dim * (dim + 1) // 2}[settings.noise]
        w, k = settings.width, settings.blocks
        self.into = nn.Linear(dim, w)
        self.from_x = nn.Linear(features, w * (k + 1))
        self.from_noise = nn.Sequential(nn.Linear(noise_size, 32), nn.SiLU(), nn.Linear(32, w * (k + 1)))
        self.first = nn.ModuleList([nn.Linear(w, w) for _ in range(k)])
        self.second = nn.ModuleList([nn.Linear(w, w) for _ in range(k)])
        self.out = nn.Linear(w, dim)
        for layer in (*self.second, self.out):
            for parameter in layer.parameters():
                nn.init.zeros_(parameter)

    def prepare(self, theta: Tensor, x: Tensor, steps: int = 3_000, kept: Tensor | None = None) -> tuple[Tensor, ...]:
        """Fits the guess to standardised simulations and returns the rows to train on.

        The rows are cross-validated: each is as it would be if the guess had been fitted without it.

        Returns: (theta - m) / w, with shape (n, d); w, with shape (n, d); and the network's input from x.
        """
        crossed, ridge = self.guess.fit(theta, x, steps, kept, self.settings.axes)
        if self.guess.embedding is not None:  # a good start for the network's own
            self.embedding.load_state_dict(self.guess.embedding.state_dict())
        if self.settings.axes:
            found = min(len(ridge.spread), steady_axes(x, self.settings.axes))
            # One scale for all components: to whiten each would make noise as large as the signal.
            self.axes[:found] = LEADING * ridge.axes[:found] / ridge.spread[0]
            self.axes_offset[:found] = -(self.axes[:found] @ x.mean(0))
        return self.rows_of(crossed, x, theta - crossed)

    @torch.no_grad()
    def rows_of(self, theta: Tensor, x: Tensor, own: Tensor | float = 0.0) -> tuple[Tensor, ...]:
        """The rows that `loss_of` takes: (theta - m) / w, w, and the network's input from x.

        Arguments:
            theta: standardised parameters, with shape (n, d).
            x: standardised observations, with shape (n, m).
            own: m(x) fitted without the row minus m(x) fitted with it, with shape (n, d). It is added to the m(x) that the
                network reads, so that this input is cross-validated, too.
        """
        parts = [self.guess(part) for part in x.split(ROWS)]
        centre, width = (torch.cat(part) for part in zip(*parts, strict=True))
        read = torch.cat([self.read(part) for part in x.split(ROWS)]) if self.settings.axes else x
        if self.settings.axes:
            read[:, -self.dim :] += own
        return (theta - centre) / width, width, read

    def read(self, x: Tensor) -> Tensor:
        """The network's input from x: x itself, or its principal components and m(x), with shape (n, r + d)."""
        if not self.settings.axes:
            return x
        return torch.cat([x @ self.axes.T + self.axes_offset, self.guess.regression(x)], -1)

    def encode(self, x: Tensor) -> Tensor:
        """The biases that x gives to every block, with shape (K, (blocks + 1) width)."""
        if torch.isnan(x).any():
            raise InputError("x has missing entries (NaN), which the MLP base cannot take; train network='simformer'")
        return self.from_x(self.embedding(self.read(x)))

    def features(self, x: Tensor) -> Tensor:
        """The embedding of x."""
        return self.embedding(self.read(x))

    def residual(self, z_in: Tensor, features: Tensor, code: Tensor) -> Tensor:
        """The network's output F, with shape (*, K, D).

        Arguments:
            z_in: preconditioned noisy parameters c_in z, with shape (*, K, D).
            features: features of the noise (`noise_features`).
            code: `encode` of x.
        """
        biases = (self.from_noise(features) + code).chunk(len(self.first) + 1, dim=-1)
        h = self.into(z_in) + biases[0]
        for first, second, bias in zip(self.first, self.second, biases[1:], strict=True):
            h = h + second(nn.functional.silu(first(nn.functional.silu(h)) + bias))
        return self.out(nn.functional.silu(h))

    def denoise(self, z: Tensor, noise: Noise, features: Tensor, code: Tensor, centre: Tensor, width: Tensor) -> Tensor:
        """E[theta_0 | z, x] from encoded x; noise and its features are in units of the guess's width."""
        z_in, skip, out_scale = noise.precondition((z - centre) / width)
        f = self.residual(z_in, features, code)
        return centre + width * (skip + noise.apply(out_scale, f))

    def condition(self, x: Tensor, predict: bool = False) -> Denoiser:
        if predict:
            raise InputError("the MLP base cannot predict x; train network='simformer'")
        return _BoundMLP(self, x)

    def loss(self, theta: Tensor, x: Tensor, generator: Generator) -> Tensor:
        """The denoising loss per row, in the network's own unit-variance target.

        Arguments:
            theta: standardised parameters, with shape (n, d).
            x: standardised observations, with shape (n, m).
            generator: draws the noise.
        """
        return self.loss_of(self.rows_of(theta, x), generator)

    def loss_of(self, rows: tuple[Tensor, ...], generator: Generator) -> Tensor:
        f, target = self.answers(rows, generator)
        return (f - target).square().mean(-1)

    def answers(self, rows: tuple[Tensor, ...], generator: Generator) -> tuple[Tensor, Tensor]:
        """The network's output F for noise drawn at random, and its target, each with shape (n, d); the guess alone says 0."""
        left, width, read = rows
        z_in, told, target = self.noisy(left, width, generator)
        return self.residual(z_in, told, self.from_x(self.embedding(read))), target

    def noisy(self, scaled: Tensor, width: Tensor, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
        """The network's input c_in z, the features of the noise, and the target of F, for noise drawn at random.

        Arguments:
            scaled: (theta - m) / w, with shape (n, d).
            width: w, with shape (n, d).
            generator: the source of randomness.
        """
        noise, features = self.settings.law.draw(width, generator)
        eps = torch.randn(scaled.shape, generator=generator).to(scaled)
        z_in, skip, out_scale = noise.precondition(scaled + noise.apply(noise.levels, eps))
        return z_in, features, noise.apply(1 / out_scale, scaled - skip)

    @torch.no_grad()
    def trust(self, factor: float) -> None:
        """Scales the network's output by a factor; with 0 the guess alone remains."""
        self.out.weight.mul_(factor)
        self.out.bias.mul_(factor)

    def config(self) -> dict:
        return {
            "network": "mlp",
            "dim": self.dim,
            "x_dim": self.x_dim,
            "own_embedding": self.own_embedding,
            "settings": asdict(self.settings),
        }


class _BoundMLP(Denoiser):
    """An MLP base with its observations, which are encoded once."""

    def __init__(self, base: MLPBase, x: Tensor):
        self.base = base
        self.x = x
        self.dim, self.noise = base.dim, base.noise
        self.s_min, self.s_max = base.s_min, base.s_max
        self.observations = len(x)
        self.code = base.encode(x)
        self.centre, self.width = base.guess(x)

    def select(self, k: int | list[int]) -> Denoiser:
        return _BoundMLP(self.base, self.x[[k] if isinstance(k, int) else k])

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        s = torch.as_tensor(s, dtype=z.dtype, device=z.device)
        levels = s if s.ndim > 0 else s.reshape(1)
        if levels.shape[-1] not in (1, self.dim):
            raise InputError(f"noise of shape {tuple(s.shape)} does not broadcast to z of shape {tuple(z.shape)}")
        if levels.shape[-1] > 1 and self.noise == "scalar":
            raise InputError("this base was trained with noise='scalar'; one level per parameter needs 'diagonal'")
        noise = Noise(levels / self.width)
        features = noise_features(noise, self.noise, self.dim)
        return self.base.denoise(z, noise, features, self.code, self.centre, self.width)

    def mean_full(self, z: Tensor, cov: Tensor) -> Tensor:
        if self.noise != "full":
            return super().mean_full(z, cov)
        noise = full_noise(cov.to(z) / (self.width.unsqueeze(-1) * self.width.unsqueeze(-2)))
        features = noise_features(noise, "full", self.dim)
        return self.base.denoise(z, noise, features, self.code, self.centre, self.width)
