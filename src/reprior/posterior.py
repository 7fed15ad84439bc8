"""The amortized posterior p(theta | x): a base model with its scales, its prior and its simulations.

The base works on standardised theta and x; users see their own units. `train` makes one from simulations, `save` and
`reprior.load` move it through a file.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reprior import io, priors
from reprior.diffusion.denoiser import Base, Denoiser
from reprior.diffusion.density import log_density
from reprior.diffusion.sampler import ROWS, Sampler, chunked
from reprior.distance import distance_warning
from reprior.errors import InputError
from reprior.info import Info
from reprior.sampling import Draws, check_x, count_of, redraw, watched
from reprior.simulations import Simulations
from reprior.standardizer import Standardizer

__all__ = ["Posterior", "Scales", "prior_fingerprint"]

LEAK_DRAWS = 2_000  # draws that measure the network's mass outside a bounded prior, to about 1 % of the mass
FINGERPRINT_POINTS = 32  # points at which the log-density of a prior is compared
FAR = 30.0  # prior standard deviations: a prior that has mass this far out in every direction counts as unbounded


@dataclass(frozen=True)
class Scales:
    """The standardisation of theta and x.

    Attributes:
        theta: mean and standard deviation of each parameter.
        x: median and robust scale of each entry of x, far outliers compressed.
    """

    theta: Standardizer
    x: Standardizer


@dataclass(frozen=True)
class Posterior(Draws):
    """An amortized posterior p(theta | x).

    Attributes:
        base: the denoiser, on standardised theta and x.
        scales: the standardisation.
        prior: the prior p it was trained under.
        simulations: the stored pairs (theta, x), or None if they were not kept.
        parameters: the names of the parameters.
        sampler: the default sampler.
    """

    base: Base
    scales: Scales
    prior: Any
    simulations: Simulations | None
    parameters: tuple[str, ...]
    sampler: Sampler = field(default_factory=Sampler)

    def __repr__(self) -> str:
        kept = "no simulations" if self.simulations is None else f"{len(self.simulations):,} simulations"
        names = ", ".join(self.parameters)
        return f"Posterior(p({names} | x of {self.x_dim}), {type(self.base).__name__}, {kept})"

    @property
    def dim(self) -> int:
        """The number d of parameters."""
        return self.base.dim

    @property
    def x_dim(self) -> int:
        """The number m of entries of x."""
        return self.base.x_dim

    @property
    def device(self) -> torch.device:
        """The device of the base."""
        return next(self.base.parameters()).device

    def to(self, device: str | torch.device) -> Posterior:
        """The same posterior on another device; posteriors adapted from this one are not moved."""
        return replace(self, base=copy.deepcopy(self.base).to(device))

    def with_simulations(self, theta: Tensor, x: Tensor) -> Posterior:
        """The same posterior with its stored simulations attached (after a `load` of a file without them).

        As in training, rows with NaN are dropped, or kept where the base takes missing entries.
        """
        missing = "keep" if self.base.takes_missing else "drop"
        kept = Simulations.create(theta, x, prior=self.prior, parameters=self.parameters, missing=missing)
        return replace(self, simulations=kept)

    def condition(self, x: Tensor, predict: bool = False) -> Denoiser:
        """The base bound to observations in the user's units, with shape (K, m)."""
        with torch.no_grad():
            return self.base.condition(self.scales.x.forward(x).to(self.device), predict)

    def _draw(
        self, x: Tensor, shape: Sequence[int], seed: int, sampler: Sampler | None, predict: bool, progress: bool
    ) -> tuple[Tensor, Info]:
        n, began, sampler = count_of(shape), time.monotonic(), sampler or self.sampler
        generator = torch.Generator().manual_seed(seed)
        denoiser = self.condition(x, predict)
        with watched(denoiser, "sample", progress) as seen:
            theta, rejected, failed = redraw(
                self.to_user(chunked(seen, n, sampler, generator)),
                lambda some, count: self.to_user(chunked(seen.select(some), count, sampler, generator)),
                lambda both: torch.isfinite(priors.log_prob(self.prior, both[..., : self.dim])),
                "the prior's support; the observation may lie far from the simulations",
            )

        def distant() -> tuple[str, ...]:
            return distance_warning(self.simulations, self.scales.x, x) if len(x) == 1 and not predict else ()

        info = Info("base", n, len(x), time.monotonic() - began, rejected, failed=failed, _distant=distant)
        return theta, info

    def _split(self, both: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Splits draws of (theta in user units, standardised x_missing), with shape (n, D), into theta and full x."""
        missing = torch.isnan(x)
        full = torch.zeros(len(both), len(x)).to(both)
        full[:, missing] = both[:, self.dim :]
        return both[:, : self.dim], torch.where(missing, self.scales.x.inverse(full), x)

    def log_prob(self, theta: Tensor, x: Tensor, steps: int = 32) -> Tensor:
        """log p(theta | x), through the probability-flow ODE; -inf outside the prior's support.

        Under a bounded prior the density is that of the samples: it is normalised inside the bounds. The network's mass
        outside them is measured on 2,000 draws.

        Arguments:
            theta: parameters, with shape (*, d); read in single precision.
            x: one observation, with shape (m,) or (1, m).
            steps: integration steps.

        Returns: the log-density, with shape (*).
        """
        x = check_x(x, self.x_dim, single=True)
        denoiser = self.condition(x)
        return self.density(denoiser, theta, steps) - math.log(self._kept(denoiser))

    def _kept(self, denoiser: Denoiser) -> float:
        """The fraction of the network's mass inside the prior's support; 1 for an unbounded prior."""
        far = torch.cat([torch.eye(self.dim), -torch.eye(self.dim)]) * FAR
        if bool(torch.isfinite(priors.log_prob(self.prior, self.scales.theta.inverse(far))).all()):
            return 1.0
        generator = torch.Generator().manual_seed(0)
        theta = self.to_user(chunked(denoiser, LEAK_DRAWS, self.sampler, generator))
        inside = torch.isfinite(priors.log_prob(self.prior, theta[..., : self.dim])).float().mean()
        return max(float(inside), 1 / LEAK_DRAWS)

    def density(self, denoiser: Denoiser, theta: Tensor, steps: int = 32) -> Tensor:
        """The log-density, in the user's units, of a denoiser with one bound observation."""
        theta = torch.as_tensor(theta, dtype=torch.float32).detach().cpu()
        flat = theta.reshape(-1, theta.shape[-1])
        if flat.shape[-1] != self.dim:
            raise InputError(f"theta needs {self.dim} entries in its last axis; got shape {tuple(theta.shape)}")
        standard = self.scales.theta.forward(flat).to(self.device)
        parts = [log_density(denoiser, part.unsqueeze(1), steps)[:, 0] for part in standard.split(ROWS // 4)]
        out = torch.cat(parts).cpu() - self.scales.theta.scale.log().sum()
        out = out.masked_fill(torch.isinf(priors.log_prob(self.prior, flat)), -torch.inf)
        return out.reshape(theta.shape[:-1])

    def to_user(self, z: Tensor) -> Tensor:
        """Standardised draws, with shape (*, D), in the user's units; predicted entries of x stay standardised."""
        z = z.cpu()
        theta = self.scales.theta.inverse(z[..., : self.dim])
        return theta if z.shape[-1] == self.dim else torch.cat([theta, z[..., self.dim :]], dim=-1)

    def to_parts(self, simulations: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and plain data of a file."""
        tensors = {f"base.{k}": v for k, v in self.base.state_dict().items()}
        for name in ("theta", "x"):
            scale = getattr(self.scales, name)
            tensors |= {f"scales.{name}.shift": scale.shift, f"scales.{name}.scale": scale.scale}
        if simulations and self.simulations is not None:
            tensors |= {"simulations.theta": self.simulations.theta, "simulations.x": self.simulations.x}
        prior = priors.to_dict(self.prior)
        meta = {
            "base": self.base.config(),
            "compress": [self.scales.theta.compress, self.scales.x.compress],
            "prior": prior,
            "prior_fingerprint": prior_fingerprint(self.prior, self.scales.theta) if prior is None else None,
            "parameters": list(self.parameters),
            "sampler": vars(self.sampler),
        }
        return {k: v.detach().cpu().contiguous() for k, v in tensors.items()}, meta

    def save(self, path: str | Path, simulations: bool = True) -> Path:
        """Writes the posterior to one file (safetensors with JSON).

        Arguments:
            path: the file; ``.safetensors`` is added where there is no suffix.
            simulations: whether the stored simulations go with it (a learned change of prior needs them).
        """
        tensors, meta = self.to_parts(simulations)
        warn_of_lost(meta)
        return io.write(path, "posterior", tensors, meta)


@torch.no_grad()
def prior_fingerprint(prior: Any, scale: Standardizer) -> list[float]:
    """A fingerprint of a prior: log p at fixed points in the scale of theta, up to a constant."""
    points = scale.inverse(
        torch.randn(FINGERPRINT_POINTS, len(scale.shift), generator=torch.Generator().manual_seed(0))
    )
    return priors.fingerprint(lambda theta: priors.log_prob(prior, theta), points)


def warn_of_lost(meta: dict[str, Any]) -> None:
    """Warns the caller of `save` if the file cannot hold a prior."""
    for name in ("prior", "target"):
        if (
            name in meta
            and meta[name] is None
            and meta.get(f"{name}_kind", "distribution") in ("distribution", "callable")
        ):
            warnings.warn(
                f"the {name} cannot be written as plain data and is not in the file: pass it to load(path, {name}=...)",
                stacklevel=3,
            )
