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

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from reprior.errors import InputError

__all__ = ["NOISE_KINDS", "Base", "Denoiser", "Finer", "NoiseKind", "Watched", "Wrapped", "finer"]

NoiseKind = Literal["scalar", "diagonal", "full"]
NOISE_KINDS: tuple[NoiseKind, ...] = ("scalar", "diagonal", "full")
STEP = 0.35  # in log s: the step of a sampler that goes on below the trained noise, about that of the default grid
FINE = 0.1  # of a width: a process that ends at this noise makes the width too small by half a per cent


class Denoiser(ABC):
    """E[theta_0 | z, x], for K bound observations x.

    Attributes:
        dim: the number D of diffused variables (d parameters, then the predicted entries of x, if any).
        observations: the number K of bound observations.
        noise: the finest noise that `mean` takes: "scalar", "diagonal" or "full".
        s_min: the smallest noise level that was trained.
        s_max: the largest one, at which z is nearly Gaussian.
        x: the bound observations, standardised, with shape (K, m); NaN where missing.
        extra_steps: additional sampler steps for a process that ends below the lowest trained noise.
    """

    dim: int
    observations: int
    noise: NoiseKind
    s_min: float
    s_max: float
    x: Tensor
    extra_steps: int = 0

    @abstractmethod
    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        """E[theta_0 | z, x].

        Arguments:
            z: noisy parameters, with shape (*, K, D), or (*, D) for K = 1.
            s: noise levels that broadcast to z's shape.
        """

    def mean_full(self, z: Tensor, cov: Tensor) -> Tensor:
        """E[theta_0 | z, x] for noise of covariance ``cov``, with shape (D, D) or (*, D, D)."""
        raise InputError(f"this base was trained with noise={self.noise!r}; a covariance needs noise='full'")

    def select(self, k: int | list[int]) -> Denoiser:
        """The same denoiser with only one of its bound observations, or some of them (counted from 0)."""
        if self.observations == 1 and k in (0, [0]):
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

    def prepare(self, theta: Tensor, x: Tensor, steps: int = 3_000, kept: Tensor | None = None) -> tuple[Tensor, ...]:
        """Fits what comes before training (a guess, say) to standardised simulations; gives the rows to train on.

        Arguments:
            theta: standardised parameters, with shape (n, d).
            x: standardised observations, with shape (n, m).
            steps: the most training steps of a small network that this may take.
            kept: indices of the rows that are not held out; all by default. A fit that uses other rows as well must be
                cross-validated over them.

        Returns: tensors of n rows, which `loss_of` takes.
        """
        return theta, x

    def loss_of(self, rows: tuple[Tensor, ...], generator: torch.Generator) -> Tensor:
        """The loss of each row of what `prepare` returned, with shape (n,)."""
        raise NotImplementedError

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
    """Features of complete x, padded to the width of features that hold indicators of missing entries (zeros: none)."""
    return torch.nn.functional.pad(features, (0, width - features.shape[-1]))


def features_of(base: Base, x: Tensor, rows: int) -> Tensor:
    """`Base.features` of many x, with shape (n, m), ``rows`` at a time: shape (n, e), on the base's device."""
    device = next(base.parameters()).device
    with torch.no_grad():
        parts = [base.features(block.to(device)) for block in x.split(rows)]
    return torch.cat([widen(part, max(other.shape[-1] for other in parts)) for part in parts])


class Wrapped(Denoiser):
    """A denoiser around another one, with the attributes of the inner one."""

    def __init__(self, inner: Denoiser):
        self.inner = inner
        self.dim = inner.dim
        self.observations = inner.observations
        self.noise = inner.noise
        self.s_min = inner.s_min
        self.s_max = inner.s_max
        self.extra_steps = inner.extra_steps
        self.x = inner.x


class Watched(Wrapped):
    """The inner denoiser with a callback after each evaluation, for a progress bar.

    Arguments:
        inner: the denoiser.
        on_call: called after each evaluation.
    """

    def __init__(self, inner: Denoiser, on_call: Callable[[], object]):
        super().__init__(inner)
        self.on_call = on_call

    def select(self, k: int | list[int]) -> Denoiser:
        return Watched(self.inner.select(k), self.on_call)

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        out = self.inner.mean(z, s)
        self.on_call()
        return out

    def mean_full(self, z: Tensor, cov: Tensor) -> Tensor:
        out = self.inner.mean_full(z, cov)
        self.on_call()
        return out


class Finer(Wrapped):
    """A denoiser below the lowest noise that its base was trained with: the score is taken not to change there.

    D(z, S) = z + S score(z), so D(z, S) = z + S S_0^-1 (D(z, S_0) - z), where S_0 has the levels of S raised to the lowest
    trained one. A target prior hardly wider than that noise needs this: its draws would come out too narrow otherwise.

    Arguments:
        inner: the denoiser.
        s_min: the noise level at which the process is to end.
    """

    def __init__(self, inner: Denoiser, s_min: float):
        super().__init__(inner)
        self.s_min = min(s_min, inner.s_min)
        self.extra_steps += math.ceil(math.log(inner.s_min / self.s_min) / STEP)

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        s = torch.as_tensor(s).to(z)
        low = s.clamp(min=self.inner.s_min)
        mean = self.inner.mean(z, low)
        return mean if torch.equal(low, s) else z + (s / low) ** 2 * (mean - z)

    def mean_full(self, z: Tensor, cov: Tensor) -> Tensor:
        values, axes = torch.linalg.eigh(cov.double())
        low = values.clamp(min=self.inner.s_min**2)
        if torch.equal(low, values):
            return self.inner.mean_full(z, cov)
        raised = ((axes * low.unsqueeze(-2)) @ axes.mT).to(cov)
        ratio = ((axes * (values / low).unsqueeze(-2)) @ axes.mT).to(z)  # S S_0^-1
        step = self.inner.mean_full(z, raised) - z
        return z + torch.einsum("...ij,...j->...i", ratio, step)


def finer(denoiser: Denoiser, width: float) -> Denoiser:
    """The denoiser for a process that ends well below a width (standardised units); unchanged if it already does."""
    return denoiser if FINE * width >= denoiser.s_min else Finer(denoiser, FINE * width)
