"""The MLP base: a residual network of (z, noise, x) with EDM preconditioning, about a Gaussian guess.

A guess N(m(x), diag w(x)^2) is fitted before training (`reprior.networks.guess`). The network works on
(theta - m(x)) / w(x), which has mean zero and unit variance at every x.

The observation is embedded once; its embedding and the noise enter every block through a bias. Both biases are
computed once per observation and once per noise level, so a step of the sampler costs the blocks alone.
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

__all__ = ["MLPBase", "MLPSettings"]


@dataclass(frozen=True)
class MLPSettings:
    """Settings of the MLP base.

    Attributes:
        noise: "scalar", "diagonal" (one level per parameter) or "full" (a covariance).
        width: the hidden width.
        blocks: the number of residual blocks, of two layers each.
        embedding: the embedding network for x.
        guess: what is known before the diffusion: "linear" (a regression) or "gaussian" (a network's mean and width).
        law: how noise is drawn in training (its kind follows `noise`).
    """

    noise: NoiseKind = "diagonal"
    width: int = 160
    blocks: int = 3
    embedding: Embedding = field(default_factory=Embedding)
    guess: Literal["linear", "gaussian"] = "linear"
    law: NoiseLaw = field(default_factory=NoiseLaw)

    def __post_init__(self) -> None:
        if self.width < 1 or self.blocks < 1:
            raise InputError(f"an MLP needs width and blocks of at least 1; got {self.width} and {self.blocks}")
        if self.guess not in ("linear", "gaussian"):
            raise InputError(f"guess {self.guess!r} is unknown; allowed: linear, gaussian")
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

    def __init__(self, dim: int, x_dim: int, settings: MLPSettings, embedding: nn.Module | None = None):
        super().__init__()
        self.dim, self.x_dim, self.settings = dim, x_dim, settings
        self.noise: NoiseKind = settings.noise
        self.s_min, self.s_max = settings.law.s_min, settings.law.s_max
        self.own_embedding = embedding is not None
        self.embedding = build_embedding(settings.embedding, x_dim) if embedding is None else deepcopy(embedding)
        with torch.no_grad():
            self.embedding.eval()
            features = self.embedding(torch.zeros(2, x_dim)).shape[-1]
            self.embedding.train()
        summary = summary_of(settings.embedding, embedding is None)
        size = summary(torch.zeros(1, x_dim)).shape[1]
        copy = deepcopy(self.embedding) if settings.guess == "gaussian" else None
        self.guess = Guess(dim, summary, size, copy, features)
        told = {"scalar": 1, "diagonal": dim, "full": dim * (dim + 1) // 2}[settings.noise]
        w, k = settings.width, settings.blocks
        self.into = nn.Linear(dim, w)
        self.from_x = nn.Linear(features, w * (k + 1))
        self.from_noise = nn.Sequential(nn.Linear(told, 32), nn.SiLU(), nn.Linear(32, w * (k + 1)))
        self.first = nn.ModuleList([nn.Linear(w, w) for _ in range(k)])
        self.second = nn.ModuleList([nn.Linear(w, w) for _ in range(k)])
        self.out = nn.Linear(w, dim)
        for layer in (*self.second, self.out):
            for parameter in layer.parameters():
                nn.init.zeros_(parameter)

    def prepare(self, theta: Tensor, x: Tensor, steps: int = 3_000) -> None:
        """Fits the guess on standardised simulations, with shapes (n, d) and (n, m)."""
        self.guess.fit(theta, x, steps)
        if self.guess.embedding is not None:  # a good start for the network's own
            self.embedding.load_state_dict(self.guess.embedding.state_dict())

    def encode(self, x: Tensor) -> Tensor:
        """The biases that x gives to every block, with shape (K, (blocks + 1) width)."""
        if torch.isnan(x).any():
            raise InputError("x has missing entries (NaN), which the MLP base cannot take; train network='simformer'")
        return self.from_x(self.embedding(x))

    def features(self, x: Tensor) -> Tensor:
        """The embedding of x."""
        return self.embedding(x)

    def residual(self, z_in: Tensor, features: Tensor, code: Tensor) -> Tensor:
        """F(c_in z, noise, x), with shape (*, K, D)."""
        biases = (self.from_noise(features) + code).chunk(len(self.first) + 1, dim=-1)
        h = self.into(z_in) + biases[0]
        for first, second, bias in zip(self.first, self.second, biases[1:], strict=True):
            h = h + second(nn.functional.silu(first(nn.functional.silu(h)) + bias))
        return self.out(nn.functional.silu(h))

    def denoise(self, z: Tensor, noise: Noise, told: Tensor, code: Tensor, centre: Tensor, width: Tensor) -> Tensor:
        """E[theta_0 | z, x] from encoded x; the noise is in units of the guess's width."""
        z_in, skip, out_scale = noise.precondition((z - centre) / width)
        f = self.residual(z_in, told, code)
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
        centre, width = self.guess(x)
        noise, told = self.settings.law.draw(width, generator)
        left = (theta - centre) / width
        eps = torch.randn(theta.shape, generator=generator).to(theta)
        z_in, skip, out_scale = noise.precondition(left + noise.apply(noise.levels, eps))
        f = self.residual(z_in, told, self.encode(x))
        return (f - noise.apply(1 / out_scale, left - skip)).square().mean(-1)

    def config(self) -> dict:
        return {
            "network": "mlp",
            "dim": self.dim,
            "x_dim": self.x_dim,
            "own_embedding": self.own_embedding,
            "settings": asdict(self.settings),
        }


class _BoundMLP(Denoiser):
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
        told = noise_features(noise, self.noise, self.dim)
        return self.base.denoise(z, noise, told, self.code, self.centre, self.width)

    def mean_full(self, z: Tensor, cov: Tensor) -> Tensor:
        if self.noise != "full":
            return super().mean_full(z, cov)
        noise = full_noise(cov.to(z) / (self.width.unsqueeze(-1) * self.width.unsqueeze(-2)))
        told = noise_features(noise, "full", self.dim)
        return self.base.denoise(z, noise, told, self.code, self.centre, self.width)
