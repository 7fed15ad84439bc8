"""The protocol of a base model: a denoiser.

Noisy parameters are written z = theta_0 + s eps, eps ~ N(0, I), in standardised units. A variance-preserving state
theta_t = alpha_t theta_0 + sigma_t eps is the same thing with z = theta_t / alpha_t and s = sigma_t / alpha_t, so
VP, VE and flow matching meet here and nothing downstream sees a schedule. A denoiser gives

    mean(z, s) = E[theta_0 | z, x],        score(z, s) = (mean(z, s) - z) / s^2 = grad_z log p(z | x)

for observations x that were bound to it by `Base.condition`. The noise s is a tensor that broadcasts to z: one level
for all, one per row, or one per parameter (``noise="diagonal"``); a base with ``noise="full"`` also takes a whole
covariance S, z = theta_0 + N(0, S).

Guidance wraps a denoiser and is a denoiser; the sampler never knows which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor

from reprior.errors import InputError

__all__ = ["NOISE_KINDS", "Base", "Denoiser", "NoiseKind", "Wrapped"]

NoiseKind = Literal["scalar", "diagonal", "full"]
NOISE_KINDS: tuple[NoiseKind, ...] = ("scalar", "diagonal", "full")


class Denoiser(ABC):
    """E[theta_0 | z, x], for K bound observations x.

    Attributes:
        dim: the number D of diffused variables (d parameters, then the predicted entries of x, if any).
        observations: the number K of bound observations.
        noise: the finest noise that `mean` takes: "scalar", "diagonal" or "full".
        s_min: the smallest noise level that was trained.
        s_max: the largest one, at which z is nearly Gaussian.
        x: the bound observations, standardised, with shape (K, m); NaN where missing.
    """

    dim: int
    observations: int
    noise: NoiseKind
    s_min: float
    s_max: float
    x: Tensor

    @abstractmethod
    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        """E[theta_0 | z, x].

        Arguments:
            z: noisy parameters, with shape (*, K, D), or (*, D) when K = 1 is to be left out.
            s: noise levels that broadcast to z's shape.
        """

    def mean_full(self, z: Tensor, cov: Tensor) -> Tensor:
        """E[theta_0 | z, x] for noise of covariance ``cov``, with shape (D, D) or (*, D, D)."""
        raise InputError(f"this base was trained with noise={self.noise!r}; a covariance needs noise='full'")

    def select(self, k: int) -> Denoiser:
        """The same denoiser with only the k-th bound observation."""
        if self.observations == 1 and k == 0:
            return self
        raise NotImplementedError

    def score(self, z: Tensor, s: Tensor) -> Tensor:
        """grad_z log p(z | x), with shape (*, K, D); for scalar noise or one level per parameter."""
        return (self.mean(z, s) - z) / s**2


class Base(torch.nn.Module, ABC):
    """An amortized denoiser: bind observations to it and it is a `Denoiser`.

    Attributes:
        dim: the number d of parameters.
        x_dim: the number m of entries of x.
        noise: the finest noise it was trained with.
        s_min: the smallest trained noise level.
        s_max: the largest trained noise level.
        takes_missing: whether entries of x may be missing (NaN).
    """

    takes_missing: bool = False
    dim: int
    x_dim: int
    noise: NoiseKind
    s_min: float
    s_max: float

    @abstractmethod
    def condition(self, x: Tensor, predict: bool = False) -> Denoiser:
        """Binds observations.

        Arguments:
            x: standardised observations, with shape (K, m); NaN where missing, if the base can take that.
            predict: also diffuse the missing entries of x, behind the parameters (the same entries in every row).
        """

    def prepare(self, theta: Tensor, x: Tensor, steps: int = 3_000) -> None:
        """What a base takes from the standardised simulations, with shapes (n, d) and (n, m), before training.

        Arguments:
            theta: standardised parameters.
            x: standardised observations.
            steps: how much work it may be, in steps of a small network.
        """

    def features(self, x: Tensor) -> Tensor:
        """A fixed summary of standardised x, (K, m) -> (K, e), for networks that are trained beside the base.

        x itself here, with zeros and an indicator where it is missing; a base with an embedding gives that.
        """
        missing = torch.isnan(x)
        if not bool(missing.any()):
            return x
        return torch.cat([x.nan_to_num(nan=0.0), missing.to(x)], dim=-1)

    @abstractmethod
    def config(self) -> dict:
        """The plain data that rebuilds the module, before its weights are loaded."""


def widen(features: Tensor, width: int) -> Tensor:
    """Features of x as wide as others, whose rows had missing entries: the indicators of none, zeros, are added."""
    return torch.nn.functional.pad(features, (0, width - features.shape[-1]))


def features_of(base: Base, x: Tensor, rows: int) -> Tensor:
    """`Base.features` of many x, with shape (n, m), some of them at a time: shape (n, e), on the base's device."""
    device = next(base.parameters()).device
    with torch.no_grad():
        parts = [base.features(block.to(device)) for block in x.split(rows)]
    return torch.cat([widen(part, max(other.shape[-1] for other in parts)) for part in parts])


class Wrapped(Denoiser):
    """A denoiser around another one: what it does not change is the other's."""

    def __init__(self, inner: Denoiser):
        self.inner = inner
        self.dim = inner.dim
        self.observations = inner.observations
        self.noise = inner.noise
        self.s_min = inner.s_min
        self.s_max = inner.s_max
        self.x = inner.x
