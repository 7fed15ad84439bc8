"""The amortized posterior p(theta | x): a base model with its scales, its prior and its simulations.

The base works on standardised theta and x; users see their own units. `train` makes one from simulations, `save` and
`reprior.load` move it through a file.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reprior import io, priors
from reprior.arrays import as_array
from reprior.diffusion.denoiser import Base, Denoiser
from reprior.diffusion.density import log_density
from reprior.diffusion.sampler import ROWS, Sampler, chunked
from reprior.distance import warned
from reprior.errors import InputError
from reprior.info import Info
from reprior.simulations import Simulations
from reprior.standardizer import Standardizer

__all__ = ["Posterior", "Scales", "check_seed", "check_x", "fresh_seed", "mark_of", "redraw"]

LEAK_DRAWS = 2_000
MARKS = 32  # points at which `mark_of` looks
FAR = 30.0  # standard deviations: where a bounded prior has no mass
MOST = 100  # draws for each sample asked for, at most, where many fall outside the support
AT_ONCE = 20  # of these, in one go
FEWEST = 100  # samples asked for are counted as so many, at least
LOW_ACCEPTANCE = 0.25  # above it, two draws for each that is missing will do


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
class Posterior:
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
        """Where the base lives."""
        return next(self.base.parameters()).device

    def to(self, device: str | torch.device) -> Posterior:
        """The same posterior on another device; what was adapted from this one stays where it is."""
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

    def sample(
        self,
        shape: int | Sequence[int],
        x: Tensor,
        seed: int | None = None,
        sampler: Sampler | None = None,
        return_info: bool = False,
        progress: bool = False,
        show_progress_bars: bool = False,
    ) -> Any:
        """Draws theta ~ p(theta | x) for one observation.

        Arguments:
            shape: the sample shape, (n,) or n.
            x: one observation, with shape (m,) or (1, m).
            seed: makes the draws repeatable; without it they follow torch's global random state.
            sampler: another sampler than the posterior's default.
            return_info: also return an `Info`.
            progress: show a progress bar.
            show_progress_bars: the same by sbi's name, so that its diagnostics (run_sbc, run_tarp) take this posterior.

        Returns: theta, with shape (*shape, d), or (theta, info).
        """
        shape = as_shape(shape)
        x = check_x(x, self.x_dim, single=True)
        theta, info = self.draw(
            self.condition(x), "base", shape, seed, sampler or self.sampler, progress or show_progress_bars
        )
        theta = theta[:, 0].reshape(*shape, self.dim)
        return (theta, warned(info, self.simulations, self.scales.x, x)) if return_info else theta

    def sample_batched(
        self,
        shape: int | Sequence[int],
        x: Tensor,
        seed: int | None = None,
        sampler: Sampler | None = None,
        return_info: bool = False,
        progress: bool = False,
        show_progress_bars: bool = False,
    ) -> Any:
        """Draws theta for many observations, x with shape (B, m). Returns theta with shape (*shape, B, d)."""
        shape = as_shape(shape)
        x = check_x(x, self.x_dim)
        theta, info = self.draw(
            self.condition(x), "base", shape, seed, sampler or self.sampler, progress or show_progress_bars
        )
        theta = theta.reshape(*shape, len(x), self.dim)
        return (theta, info) if return_info else theta

    def predict(
        self,
        shape: int | Sequence[int],
        x: Tensor,
        seed: int | None = None,
        sampler: Sampler | None = None,
        return_info: bool = False,
        progress: bool = False,
    ) -> Any:
        """Draws the missing entries of x with the parameters: p(theta, x_missing | x_observed).

        Arguments:
            x: one observation, with shape (m,), NaN where it is to be predicted.

        Returns: (theta with shape (*shape, d), x with shape (*shape, m), the observed entries filled in), and the
        info where asked for.
        """
        shape = as_shape(shape)
        x = check_x(x, self.x_dim, single=True, missing=True)
        both, info = self.draw(self.condition(x, predict=True), "base", shape, seed, sampler or self.sampler, progress)
        theta, full = self.split_prediction(both[:, 0], x[0])
        theta, full = theta.reshape(*shape, self.dim), full.reshape(*shape, self.x_dim)
        return (theta, full, info) if return_info else (theta, full)

    def split_prediction(self, both: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Splits draws of (theta in user units, standardised x_missing), with shape (n, D), into theta and full x."""
        missing = torch.isnan(x)
        full = torch.zeros(len(both), len(x)).to(both)
        full[:, missing] = both[:, self.dim :]
        return both[:, : self.dim], torch.where(missing, self.scales.x.inverse(full), x)

    def log_prob(self, theta: Tensor, x: Tensor, steps: int = 32) -> Tensor:
        """log p(theta | x), through the probability-flow ODE; -inf outside the prior's support.

        Under a bounded prior the density is that of the samples: what the network leaks beyond the bounds is taken
        off (from 2,000 draws).

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
        """The share of the network's mass inside the prior's support; 1 for an unbounded prior."""
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

    def draw(
        self,
        denoiser: Denoiser,
        method: str,
        shape: Sequence[int],
        seed: int | None,
        sampler: Sampler,
        progress: bool = False,
    ) -> tuple[Tensor, Info]:
        """Runs the sampler in chunks, back in the user's units, and draws again what falls outside the prior's support.

        Arguments:
            denoiser: the denoiser, with K bound observations.

        Returns: theta, with shape (n, K, D), and the info.
        """
        n = int(torch.Size(shape).numel())
        if n < 1:
            raise InputError(f"the sample shape must hold at least one sample; got {tuple(shape)}")
        from tqdm.auto import tqdm

        began = time.monotonic()
        generator = torch.Generator().manual_seed(fresh_seed() if seed is None else seed)
        total = math.ceil(n / max(1, ROWS // denoiser.observations)) * sampler.steps
        with tqdm(total=total, desc="sample", disable=not progress) as bar:
            theta = self.to_user(chunked(denoiser, n, sampler, generator, on_step=lambda _: _tick(bar)))
        theta, rejected = redraw(
            theta,
            lambda count: self.to_user(chunked(denoiser, count, sampler, generator)),
            lambda both: torch.isfinite(priors.log_prob(self.prior, both[..., : self.dim])),
            "the prior's support; the observation may lie far from the simulations",
        )
        return theta, Info(method, n, theta.shape[1], time.monotonic() - began, rejected)

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
            "prior_mark": mark_of(self.prior, self.scales.theta).tolist() if prior is None else None,
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
def mark_of(prior: Any, scale: Standardizer) -> Tensor:
    """What tells a prior from another one: log p at fixed points in the scale of theta, up to a constant."""
    points = scale.inverse(torch.randn(MARKS, len(scale.shift), generator=torch.Generator().manual_seed(0)))
    return priors.mark(priors.log_prob(prior, points))


def warn_of_lost(meta: dict[str, Any]) -> None:
    """Warns, for the caller of a `save`, where the file cannot hold a prior."""
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


def _tick(bar: Any) -> None:
    bar.update()


def redraw(
    theta: Tensor, more: Callable[[int], Tensor], allowed: Callable[[Tensor], Tensor], outside: str
) -> tuple[Tensor, float]:
    """Draws again what is not allowed, until all is.

    Arguments:
        theta: draws, with shape (n, K, D); changed in place.
        more: gives that many new draws, with shape (count, K, D).
        allowed: says which draws are allowed, (*, D) -> (*).
        outside: what the others lie outside of, and what that may come from, for the error.

    Returns: theta, and the fraction of all draws that was rejected.
    """
    bad = ~allowed(theta)
    n, drawn, rejected = len(theta), len(theta), bad.sum(0)  # rejected: of each observation
    while bool(bad.any()):
        if drawn > MOST * max(n, FEWEST):
            share = 100 * int(rejected.max()) / drawn
            raise InputError(f"{share:.1f} % of the draws fall outside {outside} ({drawn:,} were made)")
        holes = int(bad.sum(0).max())
        accepted = max(1 - int(rejected.max()) / drawn, 1 / MOST)
        again = more(
            2 * holes if accepted > LOW_ACCEPTANCE else min(math.ceil(1.2 * holes / accepted), AT_ONCE * max(n, FEWEST))
        )
        fine = allowed(again)
        drawn, rejected = drawn + len(fine), rejected + (~fine).sum(0)
        for k in range(theta.shape[1]):
            holes, fill = bad[:, k].nonzero()[:, 0], again[fine[:, k], k]
            count = min(len(holes), len(fill))
            theta[holes[:count], k] = fill[:count]
            bad[holes[:count], k] = False
    return theta, float(rejected.sum()) / (drawn * theta.shape[1])


def as_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """A sample shape; n stands for (n,)."""
    return (int(shape),) if isinstance(shape, (int, Integral)) else tuple(shape)


def check_x(x: Tensor, x_dim: int, single: bool = False, missing: bool = False) -> Tensor:
    """x with shape (K, m), checked.

    Arguments:
        x: observations, with shape (m,) or (K, m).
        x_dim: the number m of entries.
        single: exactly one observation is allowed.
        missing: NaN must be there: it marks what is to be predicted.
    """
    x = torch.as_tensor(as_array(x), dtype=torch.float32).detach().cpu()
    rows = x.unsqueeze(0) if x.ndim == 1 else x
    if rows.ndim != 2 or rows.shape[1] != x_dim:
        raise InputError(f"x needs shape ({x_dim},) or (K, {x_dim}); got {tuple(x.shape)}")
    if single and len(rows) != 1:
        raise InputError(
            f"one observation is needed here; got {len(rows)}. Use sample_batched for several, each "
            "with its own theta, or reprior.update for several of the same theta"
        )
    if torch.isinf(rows).any():
        raise InputError(f"x has infinite entries at {torch.isinf(rows).nonzero()[:5].tolist()} (row, entry)")
    if missing and not torch.isnan(rows).any():
        raise InputError(
            "nothing to predict: set the entries of x that are to be predicted to NaN (a base of network='simformer' predicts them)"
        )
    return rows


def check_seed(seed: Any) -> int:
    """A seed that was given, checked."""
    if isinstance(seed, bool) or not isinstance(seed, (int, Integral)) or seed < 0:
        raise InputError(f"seed must be an integer of 0 or more; got {seed!r}")
    return int(seed)


def fresh_seed() -> int:
    """A seed from torch's global random state, so that torch.manual_seed still rules."""
    return int(torch.randint(2**62, ()))
