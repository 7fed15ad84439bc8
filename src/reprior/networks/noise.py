"""Preconditioning and training noise for scalar, per-parameter and full-covariance noise.

With unit-variance parameters and z = theta_0 + N(0, S), the best linear denoiser is (I + S)^-1 z, and its error has
covariance S (I + S)^-1. So the network F gets the input c_in z, and its output is scaled by the square root of that
covariance (EDM, Karras et al. 2022, arXiv 2206.00364):

    D(z, S) = c_skip z + c_out F(c_in z, log S),   c_skip = (I+S)^-1,  c_out = (S (I+S)^-1)^1/2,  c_in = (I+S)^-1/2

which are numbers for scalar noise, vectors for one level per parameter, and matrices (functions of S, taken in its
eigenbasis) for a full covariance. Training draws S at random: with probability `isotropic` one level for all, else
independent log-normal levels, in the axes ("diagonal") or in a random orthogonal frame ("full").
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from reprior.diffusion.denoiser import NOISE_KINDS, NoiseKind
from reprior.errors import InputError

__all__ = ["Noise", "NoiseLaw", "full_noise", "noise_features"]


@dataclass(frozen=True)
class Noise:
    """Noise of covariance frame diag(levels^2) frame'.

    Attributes:
        levels: noise levels s, with shape (*, 1) or (*, D).
        frame: the orthogonal eigenbasis, with shape (*, D, D), or None for the axes themselves.
    """

    levels: Tensor
    frame: Tensor | None = None

    def apply(self, scale: Tensor, v: Tensor) -> Tensor:
        """frame diag(scale) frame' v, with v of shape (*, D)."""
        if self.frame is None:
            return scale * v
        inner = scale * torch.einsum("...ji,...j->...i", self.frame, v)
        return torch.einsum("...ij,...j->...i", self.frame, inner)

    def precondition(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """c_in z, c_skip z, and the scale c_out that `apply` takes for the network's output."""
        var = 1 + self.levels**2
        return self.apply(var**-0.5, z), self.apply(1 / var, z), self.levels * var**-0.5


def full_noise(cov: Tensor) -> Noise:
    """The eigenbasis and levels of a covariance, with shape (*, D, D)."""
    values, frame = torch.linalg.eigh(cov)
    return Noise(values.clamp(min=1e-12).sqrt(), frame)


def noise_features(noise: Noise, kind: NoiseKind, dim: int) -> Tensor:
    """The network's input from the noise: the mean log level, the log levels, or the upper triangle of log S / 2.

    Returns: features of shape (*, 1), (*, D) or (*, D (D + 1) / 2), scaled to order one.
    """
    logs = noise.levels.log() / 2
    if kind == "scalar":
        return logs.mean(-1, keepdim=True)
    if kind == "diagonal":
        return logs.expand(*logs.shape[:-1], dim)
    logs = logs.expand(*logs.shape[:-1], dim)
    if noise.frame is None:
        matrix = torch.diag_embed(logs)
    else:
        matrix = torch.einsum("...ik,...k,...jk->...ij", noise.frame, logs, noise.frame)
    i, j = torch.triu_indices(dim, dim, device=logs.device)
    return matrix[..., i, j]


@dataclass(frozen=True)
class NoiseLaw:
    """How noise is drawn in training.

    Attributes:
        kind: "scalar", "diagonal" or "full".
        log_mean: the mean of log s.
        log_std: the standard deviation of log s.
        isotropic: the fraction of draws with one level for all parameters ("diagonal" and "full").
        s_min: levels are kept above this.
        s_max: levels are kept below this.
    """

    kind: NoiseKind = "scalar"
    log_mean: float = -1.2
    log_std: float = 1.5
    isotropic: float = 0.45
    s_min: float = 0.002
    s_max: float = 40.0

    def __post_init__(self) -> None:
        if self.kind not in NOISE_KINDS:
            raise InputError(f"noise {self.kind!r} is unknown; allowed: {', '.join(NOISE_KINDS)}")
        if not 0 < self.s_min < self.s_max:
            raise InputError(f"noise needs 0 < s_min < s_max; got {self.s_min} and {self.s_max}")
        if not self.log_std > 0 or not 0 <= self.isotropic <= 1:
            raise InputError(f"noise needs log_std > 0 and isotropic in [0, 1]; got {self.log_std}, {self.isotropic}")

    def draw(self, width: Tensor, generator: Generator) -> tuple[Noise, Tensor]:
        """Noise for n training rows, in units of ``width``.

        Arguments:
            width: the scale of each parameter given x, with shape (n, d): noise levels are drawn around it.
            generator: the source of randomness.

        Returns: the noise in those units, and its features (`noise_features`).
        """
        n, d = width.shape
        typical = width.log().mean(-1, keepdim=True).exp()
        logs = self.log_mean + self.log_std * torch.randn(n, d, generator=generator).to(width)
        one = (logs[:, :1].exp() * typical).clamp(self.s_min, self.s_max)
        alike = one / width  # one level for all parameters, in units of each width
        if self.kind == "scalar":
            noise = Noise(alike)
            return noise, noise_features(noise, "scalar", d)
        same = (torch.rand(n, 1, generator=generator) < self.isotropic).to(width.device)
        apart = (logs.exp() * width).clamp(self.s_min, self.s_max) / width
        noise = Noise(torch.where(same, alike, apart))
        if self.kind == "full" and d > 1:
            frame = _random_frames(n, d, generator).to(width)
            axes = torch.eye(d, device=width.device, dtype=width.dtype)
            noise = Noise(noise.levels, torch.where(same.unsqueeze(-1), axes, frame))
        return noise, noise_features(noise, self.kind, d)


def _random_frames(n: int, dim: int, generator: Generator) -> Tensor:
    # Products of Householder reflections: orthogonal, mixes all axes, and cheaper than n QR decompositions.
    frame = torch.eye(dim).expand(n, dim, dim)
    for _ in range(min(dim, 4)):
        v = torch.nn.functional.normalize(torch.randn(n, dim, generator=generator), dim=-1)
        frame = frame - 2 * torch.einsum("ni,nj,njk->nik", v, v, frame)
    return frame
