"""The MLP base: a residual network of (z, noise, x) with EDM preconditioning, about a linear guess.

A linear regression of theta on x, fitted before training, gives a centre m(x) and what it leaves open, the widths w. The
network works on (theta - m(x)) / w, which has mean zero and unit variance, so that a linear-Gaussian posterior needs
nothing learned and x beyond the simulations is extrapolated along the line.

The observation is embedded once; its embedding and the noise enter every block through a bias. Both biases are
computed once per observation and once per noise level, so a step of the sampler costs the blocks alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import torch
from torch import Generator, Tensor, nn

from reprior.diffusion.denoiser import Base, Denoiser, NoiseKind
from reprior.errors import InputError
from reprior.networks.embedding import Embedding, build_embedding
from reprior.networks.noise import Noise, NoiseLaw, full_noise, noise_features

__all__ = ["MLPBase", "MLPSettings"]

RIDGE = 1e-4  # of the variance of x: keeps the linear guess tame where entries of x repeat each other


@dataclass(frozen=True)
class MLPSettings:
    """Settings of the MLP base.

    Attributes:
        noise: "scalar", "diagonal" (one level per parameter) or "full" (a covariance).
        width: the hidden width.
        blocks: the number of residual blocks, of two layers each.
        embedding: the embedding network for x.
        law: how noise is drawn in training (its kind follows `noise`).
    """

    noise: NoiseKind = "diagonal"
    width: int = 160
    blocks: int = 3
    embedding: Embedding = field(default_factory=Embedding)
    law: NoiseLaw = field(default_factory=NoiseLaw)

    def __post_init__(self) -> None:
        if self.width < 1 or self.blocks < 1:
            raise InputError(f"an MLP needs width and blocks of at least 1; got {self.width} and {self.blocks}")
        object.__setattr__(self, "law", NoiseLaw(**{**asdict(self.law), "kind": self.noise}))


class MLPBase(Base):
    """E[theta_0 | z, x] as a residual MLP.

    Arguments:
        dim: the number d of parameters.
        x_dim: the number m of entries of x.
        settings: the architecture and the training noise.
        embedding: the user's own embedding module for x, (n, m) -> (n, e); else the one of the settings.
    """

    slope: Tensor
    offset: Tensor
    width: Tensor

    def __init__(self, dim: int, x_dim: int, settings: MLPSettings, embedding: nn.Module | None = None):
        super().__init__()
        self.dim, self.x_dim, self.settings = dim, x_dim, settings
        self.noise: NoiseKind = settings.noise
        self.s_min, self.s_max = settings.law.s_min, settings.law.s_max
        self.own_embedding = embedding is not None
        self.embedding = build_embedding(settings.embedding, x_dim) if embedding is None else embedding
        with torch.no_grad():
            self.embedding.eval()
            features = self.embedding(torch.zeros(2, x_dim)).shape[-1]
            self.embedding.train()
        told = {"scalar": 1, "diagonal": dim, "full": dim * (dim + 1) // 2}[settings.noise]
        w, k = settings.width, settings.blocks
        self.into = nn.Linear(dim, w)
        self.from_x = nn.Linear(features, w * (k + 1))
        self.from_noise = nn.Sequential(nn.Linear(told, 32), nn.SiLU(), nn.Linear(32, w * (k + 1)))
        self.first = nn.ModuleList([nn.Linear(w, w) for _ in range(k)])
        self.second = nn.ModuleList([nn.Linear(w, w) for _ in range(k)])
        self.out = nn.Linear(w, dim)
        self.register_buffer("slope", torch.zeros(dim, x_dim))
        self.register_buffer("offset", torch.zeros(dim))
        self.register_buffer("width", torch.ones(dim))
        for layer in (*self.second, self.out):
            for parameter in layer.parameters():
                nn.init.zeros_(parameter)

    @torch.no_grad()
    def prepare(self, theta: Tensor, x: Tensor) -> None:
        """Fits the linear guess (ridge regression) on standardised simulations, with shapes (n, d) and (n, m)."""
        ones = torch.ones(len(x), 1, dtype=torch.float64, device=x.device)
        design = torch.cat([x.double(), ones], dim=1)
        gram = design.T @ design / len(x)
        gram += RIDGE * torch.eye(len(gram), dtype=torch.float64, device=x.device)
        solution = torch.linalg.solve(gram, design.T @ theta.double() / len(x))
        left = theta.double() - design @ solution
        self.slope.copy_(solution[:-1].T)
        self.offset.copy_(solution[-1])
        self.width.copy_(left.std(0).clamp(min=1e-3))

    def centre(self, x: Tensor) -> Tensor:
        """m(x), the linear guess, with shape (K, d)."""
        return x @ self.slope.T + self.offset

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

    def denoise(self, z: Tensor, noise: Noise, told: Tensor, code: Tensor, centre: Tensor) -> Tensor:
        """E[theta_0 | z, x] from encoded x; the noise is in units of `width`."""
        z_in, skip, out_scale = noise.precondition((z - centre) / self.width)
        f = self.residual(z_in, told, code)
        return centre + self.width * (skip + noise.apply(out_scale, f))

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
        noise, told = self.settings.law.draw(len(theta), self.width, generator)
        left = (theta - self.centre(x)) / self.width
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
        self.code, self.centre = base.encode(x), base.centre(x)

    def select(self, k: int) -> Denoiser:
        return _BoundMLP(self.base, self.x[k : k + 1])

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        s = torch.as_tensor(s, dtype=z.dtype, device=z.device)
        levels = s if s.ndim > 0 else s.reshape(1)
        if levels.shape[-1] not in (1, self.dim):
            raise InputError(f"noise of shape {tuple(s.shape)} does not broadcast to z of shape {tuple(z.shape)}")
        if levels.shape[-1] > 1 and self.noise == "scalar":
            raise InputError("this base was trained with noise='scalar'; one level per parameter needs 'diagonal'")
        noise = Noise(levels / self.base.width)
        told = noise_features(Noise(levels) if self.noise == "scalar" else noise, self.noise, self.dim)
        return self.base.denoise(z, noise, told, self.code, self.centre)

    def mean_full(self, z: Tensor, cov: Tensor) -> Tensor:
        if self.noise != "full":
            return super().mean_full(z, cov)
        noise = full_noise(cov.to(z) / (self.base.width.unsqueeze(-1) * self.base.width))
        told = noise_features(noise, "full", self.dim)
        return self.base.denoise(z, noise, told, self.code, self.centre)
