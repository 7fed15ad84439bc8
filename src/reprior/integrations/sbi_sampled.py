"""sbi posteriors without a diffusion (NPE, NLE, NRE, and any other that samples): importance resampling.

There is no denoiser to guide, so a pool of the posterior's own samples is weighted by r = q/p and resampled, with the
same `Info` and the same warnings. For NLE and NRE there is a better way: they learned the likelihood, so sbi's own
``build_posterior(prior=q)`` is exact for any prior. The result says so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Generator, Tensor

from reprior import priors
from reprior.adapted import AdaptedPosterior
from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.sampler import Sampler
from reprior.distance import distance_warning
from reprior.errors import InputError
from reprior.info import Info
from reprior.methods import Problem, SIRSettings, find
from reprior.posterior import Scales
from reprior.sampling import Draws, check_x, count_of
from reprior.seeds import check_seed, seeded
from reprior.simulations import Simulations
from reprior.standardizer import Standardizer
from reprior.target import make_change

__all__ = ["SampledPosterior", "adapt_sampled"]

EXACT = (
    "this posterior is made of a learned likelihood (NLE) or ratio (NRE): sbi's own trainer.build_posterior(prior=q) is "
    "exact for any prior, and better than resampling"
)
CANNOT_PREDICT = "an sbi posterior cannot predict x; train network='simformer' with reprior.train"
LIKELIHOOD_POOL = 5_000  # draws that NLE and NRE make for one resampling, unless the settings say otherwise
SCALE_DRAWS = 10_000  # draws of the prior that give the scale of each parameter to about 1 %


@dataclass(frozen=True)
class SampledPosterior(Draws):
    """A posterior p(theta | x) that is only sampled from.

    Attributes:
        source: the sbi posterior.
        prior: the prior p it was trained under.
        scales: the standardisation of theta (of the prior) and of x (none).
        simulations: the stored pairs, or None.
        parameters: the names of the parameters.
        likelihood: whether it holds a likelihood or a ratio, to which sbi can put another prior exactly.
    """

    source: Any
    prior: Any
    scales: Scales
    simulations: Simulations | None
    parameters: tuple[str, ...]
    likelihood: bool
    sampler: Sampler = field(default=Sampler())

    def __repr__(self) -> str:
        kept = "no simulations" if self.simulations is None else f"{len(self.simulations):,} simulations"
        return f"SampledPosterior(p({', '.join(self.parameters)} | x of {self.x_dim}), {type(self.source).__name__}, {kept})"

    @property
    def dim(self) -> int:
        """The number d of parameters."""
        return len(self.scales.theta.shift)

    @property
    def x_dim(self) -> int:
        """The number m of entries of x."""
        return len(self.scales.x.shift)

    @property
    def base(self) -> Denoiser:
        """What stands for the base model: it has no denoised mean."""
        return self.condition(torch.zeros(0, self.x_dim))

    def condition(self, x: Tensor, predict: bool = False) -> _Bound:
        """The posterior at observations x, with shape (K, m)."""
        if predict:
            raise InputError(CANNOT_PREDICT)
        return _Bound(self, x)

    def _draw(
        self, x: Tensor, shape: Sequence[int], seed: int, sampler: Sampler | None, predict: bool, progress: bool
    ) -> tuple[Tensor, Info]:
        if predict:
            raise InputError(CANNOT_PREDICT)
        n, began = count_of(shape), time.monotonic()
        theta = torch.stack([self._draw_one(n, row, seed + k, progress) for k, row in enumerate(x)], 1)

        def distant() -> tuple[str, ...]:
            return distance_warning(self.simulations, self.scales.x, x) if len(x) == 1 else ()

        return theta, Info("base", n, len(x), time.monotonic() - began, _distant=distant)

    def save(self, path: Any, simulations: bool = True) -> None:
        """Refused, as in `to_parts`."""
        self.to_parts(simulations)

    def log_prob(self, theta: Tensor, x: Tensor, steps: int = 0) -> Tensor:
        """log p(theta | x), with shape (*), where sbi has it normalised (NPE); ``steps`` is not used."""
        from sbi.inference.posteriors import DirectPosterior

        if not isinstance(self.source, DirectPosterior):
            name = type(self.source).__name__
            raise InputError(f"sbi gives the log-density of a {name} only up to a constant; there is no log_prob")
        x = check_x(x, self.x_dim, single=True)
        theta = torch.as_tensor(theta)
        flat = theta.reshape(-1, theta.shape[-1])
        if flat.shape[-1] != self.dim:
            raise InputError(f"theta needs {self.dim} entries in its last axis; got shape {tuple(theta.shape)}")
        with torch.no_grad(), seeded(0):
            value = self.source.log_prob(flat, x=self._shaped(x))
        return value.cpu().reshape(theta.shape[:-1])

    def to_user(self, z: Tensor) -> Tensor:
        """Standardised draws, with shape (*, d), in the user's units."""
        return self.scales.theta.inverse(z.cpu())

    def to_parts(self, simulations: bool) -> Any:
        """Refused: the posterior is an sbi object, which only pickle could hold."""
        raise InputError(
            f"a {type(self.source).__name__} of sbi cannot be written without pickle: keep it as sbi does, and adapt it again"
        )

    def _shaped(self, x: Tensor) -> Tensor:
        shape = _x_shape(self.source)
        return x if shape is None else x.reshape(-1, *shape)

    def _draw_one(self, n: int, x: Tensor, seed: int, progress: bool = False) -> Tensor:
        with seeded(seed % 2**63):  # gradients stay on: some of sbi's samplers start with a search for the mode
            theta = self.source.sample((n,), x=self._shaped(x.unsqueeze(0)), show_progress_bars=progress)
        return theta.detach().reshape(n, -1).cpu().float()


class _Bound(Denoiser):
    """A posterior with its observations: it has draws of its own, and no denoised mean."""

    def __init__(self, posterior: SampledPosterior, x: Tensor):
        self.posterior, self.x, self.observations = posterior, x, len(x)
        self.dim, self.noise, self.s_min, self.s_max = posterior.dim, "scalar", 1.0, 1.0

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        name = type(self.posterior.source).__name__
        raise InputError(f"a {name} of sbi is no diffusion, so nothing can be denoised or guided")

    def draws(self, n: int, generator: Generator) -> Tensor:
        """Standardised draws of p(theta | x), with shape (n, K, d)."""
        seed = int(torch.randint(2**31, (), generator=generator))
        return self.posterior.scales.theta.forward(self.posterior.sample_batched((n,), self.x, seed=seed))

    def select(self, k: int | list[int]) -> Denoiser:
        return _Bound(self.posterior, self.x[[k] if isinstance(k, int) else k])


def wrap(
    source: Any, prior: Any, simulations: Simulations | None = None, parameters: tuple[str, ...] | None = None
) -> SampledPosterior:
    """An sbi posterior that is not a diffusion.

    Arguments:
        source: the sbi posterior.
        prior: the prior p, on the CPU.
        simulations: the stored pairs, if they are kept.
        parameters: the names of the parameters.
    """
    dim = priors.dim_of(prior)
    shape = _x_shape(source)
    if shape is None and simulations is None:
        raise InputError(
            f"the size of x cannot be read off this {type(source).__name__}; use reprior.from_sbi(posterior, theta, x)"
        )
    x_dim = simulations.x.shape[1] if simulations is not None else torch.Size(shape or ()).numel()
    scales = Scales(
        Standardizer.fit(priors.sample(prior, SCALE_DRAWS, seed=0).float()),
        Standardizer(torch.zeros(x_dim), torch.ones(x_dim)),
    )
    potential = getattr(source, "potential_fn", None)
    likelihood = hasattr(potential, "likelihood_estimator") or hasattr(potential, "ratio_estimator")
    names = parameters or tuple(f"theta_{i + 1}" for i in range(dim))
    return SampledPosterior(source, prior, scales, simulations, names, likelihood)


def adapt_sampled(
    posterior: SampledPosterior, target: Any, method: str, settings: Any, seed: int, accept_outside: bool
) -> AdaptedPosterior:
    """`reprior.adapt` for a posterior that can only be sampled; arguments as there."""
    if method not in ("auto", "sir"):
        raise InputError(
            f"method {method!r} needs a diffusion posterior (NPSE, FMPE or reprior's own); for a "
            f"{type(posterior.source).__name__} the methods are auto and sir"
        )
    sir, base = find("sir"), cast(Any, posterior)
    # Each draw of a likelihood's posterior costs an MCMC run, so its pool is smaller.
    chosen = SIRSettings(pool=LIKELIHOOD_POOL) if settings is None and posterior.likelihood else sir.checked(settings)
    seed = check_seed(seed)
    change = make_change(posterior.prior, target, posterior.scales.theta, seed, accept_outside)
    why = "this sbi posterior has no diffusion to guide, so its samples are weighted by q/p and resampled"
    made = sir.build(Problem(base, change, seed), chosen).because(why + (f"; {EXACT}" if posterior.likelihood else ""))
    return AdaptedPosterior(base, change, made, notes=(EXACT,) if posterior.likelihood else ())


def _x_shape(source: Any) -> torch.Size | None:
    """The shape of one observation, from the estimator inside an sbi posterior; None if that does not have it."""
    potential: Any = getattr(source, "potential_fn", None)
    if hasattr(potential, "likelihood_estimator"):
        return torch.Size(potential.likelihood_estimator.input_shape)
    for holder, name in ((source, "posterior_estimator"), (potential, "ratio_estimator")):
        estimator = getattr(holder, name, None)
        if estimator is not None:
            return torch.Size(estimator.condition_shape)
    return None
