"""Change the prior: `adapt` gives an `AdaptedPosterior`, which samples q(theta | x) with no new simulations.

What follows from r = q/p once p(theta | x) can be sampled and evaluated is here, too:

    log q(theta | x) = log p(theta | x) + log r(theta) - log Z(x),    Z(x) = E_p(theta|x)[r] = q(x) / p(x)

Z(x) is the evidence ratio of the two priors, a Bayes factor, with a Monte Carlo error bar.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, overload
from warnings import warn

import torch
from torch import Tensor

from reprior import io, priors
from reprior.change import PriorChange
from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.sampler import Sampler, chunked
from reprior.distance import distance_warning
from reprior.errors import InputError, RefusedError
from reprior.info import Info
from reprior.methods import Method, Problem, find
from reprior.posterior import Posterior, warn_of_lost
from reprior.sampling import Draws, as_shape, check_x, count_of, redraw, watched
from reprior.seeds import check_seed, fresh_seed
from reprior.target import make_change
from reprior.weights import relative_ess, systematic

__all__ = ["AdaptedPosterior", "adapt"]

CHECK_DRAWS = 2_000  # base draws for ESS and k-hat, made when these are first asked for
CHECK_SAMPLER = Sampler(steps=20)  # ESS and k-hat need no finer draws
LARGEST_LOG = 700.0  # the exponential of more overflows double precision
FEW_EFFECTIVE = 100  # effective draws: with fewer, the relative error of Z(x) is above 10 %


def adapt(
    posterior: Posterior | Any,
    target: Any,
    method: str = "auto",
    settings: Any = None,
    seed: int = 0,
    accept_outside: bool = False,
    observed: Tensor | None = None,
    progress: bool = False,
    folder: str | os.PathLike[str] | None = None,
) -> AdaptedPosterior:
    """Changes the prior of a posterior. No simulator is called and the base does not change.

    Arguments:
        posterior: the base posterior, trained under p; or an NPE, NLE or NRE posterior of sbi (resampled).
        target: the target prior q: a torch Distribution, a list of them, a scipy distribution, a callable log-density
            (up to a constant), or samples with shape (n, d).
        method: the name of a method: "auto", or one of `reprior.methods.registered()`.
        settings: the method's settings, or the name of a preset ("best" or "paper" for learned ratios).
        seed: the same seed gives the same adapted posterior on the same machine.
        accept_outside: go on although q has mass outside p's support.
        observed: for `AdaptedPosterior.predict` with a learned method: which entries of x are observed, with shape (m,).
        progress: show progress bars.
        folder: where a learned method keeps its base draws for other estimators and for the rerun of an interrupted call;
            nothing is kept if not given.
    """
    kind = find(method)
    if isinstance(posterior, AdaptedPosterior):
        raise InputError("got an AdaptedPosterior: adapt its base, adapted.posterior, to the other prior")
    if not isinstance(posterior, Posterior):
        from reprior.integrations.sbi import adapt_sbi

        return adapt_sbi(posterior, target, method, settings, seed, accept_outside)
    seed = check_seed(seed)
    chosen = kind.checked(settings)
    change = make_change(posterior.prior, target, posterior.scales.theta, seed, accept_outside, progress)
    mask = None if observed is None else torch.as_tensor(observed, dtype=torch.bool)
    if mask is not None and mask.shape != (posterior.x_dim,):
        raise InputError(f"observed needs shape ({posterior.x_dim},), an entry for each of x; got {tuple(mask.shape)}")
    kept = None if folder is None else Path(folder)
    problem = Problem(posterior, change, seed, mask, progress, kept)
    if change.same:
        where = " inside its support" if change.outside > 0 else ""
        made = find("none")(problem).because(f"the target prior equals the prior{where}, so nothing changes")
    else:
        made = kind.build(problem, chosen)
    return AdaptedPosterior(posterior, change, made, posterior.sampler)


@dataclass(frozen=True)
class AdaptedPosterior(Draws):
    """q(theta | x), from a posterior p(theta | x) and a change of prior.

    Attributes:
        posterior: the base posterior.
        change: the change of prior.
        method: the method that draws; its name is ``method.name``.
        sampler: the sampler; the base's default.
        notes: warnings that hold for every x.
    """

    posterior: Posterior
    change: PriorChange
    method: Method
    sampler: Sampler = field(default_factory=Sampler)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"AdaptedPosterior({self.method.name}: {self.why}; {self.posterior!r})"

    @property
    def dim(self) -> int:
        """The number d of parameters."""
        return self.posterior.dim

    @property
    def x_dim(self) -> int:
        """The number m of entries of x."""
        return self.posterior.x_dim

    @property
    def why(self) -> str:
        """One sentence: why this method."""
        return self.method.why

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings that hold for every x."""
        if not self.change.outside > 0:
            return self.notes
        lost = f"{100 * self.change.outside:.3g} % of the target prior's mass lies outside the prior's support and is left out"
        return (*self.notes, lost)

    def to(self, device: str | torch.device) -> AdaptedPosterior:
        """The same adapted posterior on another device, base and learned networks included."""
        if not isinstance(self.posterior, Posterior):
            raise InputError("this base is no diffusion of reprior: move the sbi posterior itself, and adapt it again")
        posterior = self.posterior.to(device)
        return replace(self, posterior=posterior, method=self.method.to(posterior))

    # Draw

    @overload
    def sample(
        self,
        sample_shape: int | Sequence[int],
        x: Tensor,
        seed: int | None = ...,
        sampler: Sampler | None = ...,
        return_info: Literal[False] = ...,
        progress: bool = ...,
        show_progress_bars: bool = ...,
        correct: str = ...,
    ) -> Tensor: ...
    @overload
    def sample(
        self,
        sample_shape: int | Sequence[int],
        x: Tensor,
        seed: int | None = ...,
        sampler: Sampler | None = ...,
        *,
        return_info: Literal[True],
        progress: bool = ...,
        show_progress_bars: bool = ...,
        correct: str = ...,
    ) -> tuple[Tensor, Info]: ...
    def sample(
        self,
        sample_shape: int | Sequence[int],
        x: Tensor,
        seed: int | None = None,
        sampler: Sampler | None = None,
        return_info: bool = False,
        progress: bool = False,
        show_progress_bars: bool = False,
        correct: str = "no",
    ) -> Tensor | tuple[Tensor, Info]:
        """Draws theta ~ q(theta | x) for one observation.

        Arguments:
            sample_shape: the sample shape, (n,) or n.
            x: one observation, with shape (m,) or (1, m).
            seed: makes the draws repeatable; without it they follow torch's global random state.
            sampler: another sampler than the default.
            return_info: also return an `Info`.
            progress: show a progress bar.
            show_progress_bars: the same by sbi's name, so that its diagnostics (run_sbc, run_tarp) take this posterior.
            correct: "no"; "resample", by importance weights towards the exact target (`reprior.correction`); or
                "weights", which leaves the draws as they are and puts their log weights in the info.

        Returns: theta, with shape (*sample_shape, d), or (theta, info).
        """
        if correct == "no":
            both = super().sample(
                sample_shape, x, seed, sampler, return_info=True, progress=progress or show_progress_bars
            )
            return both if return_info else both[0]
        if correct == "weights" and not return_info:
            raise InputError(
                "correct='weights' gives the weights in the info: pass return_info=True, or correct='resample'"
            )
        shape, x = as_shape(sample_shape), check_x(x, self.x_dim, single=True)
        seed = fresh_seed() if seed is None else check_seed(seed)
        theta, info = self._corrected(x, shape, seed, sampler or self.sampler, correct, progress or show_progress_bars)
        theta = theta.reshape(*shape, self.dim)
        return (theta, info) if return_info else theta

    def _split(self, both: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.posterior._split(both, x)

    def _draw(
        self, x: Tensor, shape: Sequence[int], seed: int, sampler: Sampler | None, predict: bool, progress: bool
    ) -> tuple[Tensor, Info]:
        n, began, sampler = count_of(shape), time.monotonic(), sampler or self.sampler
        if self.method.corrections and not sampler.corrections:
            sampler = replace(sampler, corrections=self.method.corrections)
        generator = torch.Generator().manual_seed(seed)
        denoiser = self.posterior.condition(x, predict)
        with watched(denoiser, f"sample by {self.method.name}", progress) as seen:
            drawn = self.method.draw(seen, n, sampler, generator)
            theta, rejected, failed = self.fill(self.posterior.to_user(drawn.theta), seen, sampler, generator)
        base = self.posterior

        def weights() -> Tensor:
            if drawn.log_w is not None:
                return drawn.log_w
            pool = chunked(denoiser, CHECK_DRAWS, CHECK_SAMPLER, torch.Generator().manual_seed(seed))
            return self.change.log_w(pool).cpu()

        def distant() -> tuple[str, ...]:
            return distance_warning(base.simulations, base.scales.x, x) if len(x) == 1 and not predict else ()

        info = Info(
            self.method.name,
            n,
            len(x),
            time.monotonic() - began,
            rejected,
            self.why,
            drawn.told,
            {**failed, **drawn.failed},
            drawn.figures,
            notes=self.warnings,
            _log_w=weights,
            _distant=distant,
        )
        return theta, info

    def fill(
        self, theta: Tensor, denoiser: Denoiser, sampler: Sampler, generator: torch.Generator
    ) -> tuple[Tensor, float, dict[int, str]]:
        """Replaces draws outside the support of p or q by new ones.

        Arguments:
            theta: draws in the user's units, with shape (n, K, D); NaN at observations that failed.
            denoiser: the base with the K observations.
            sampler: the sampler.
            generator: the source of randomness.

        Returns: theta, the fraction that was drawn again, and the observations that could not be, with the reason.
        """

        def more(some: list[int], count: int) -> Tensor:
            drawn = self.method.draw(denoiser.select(some), max(10, count), sampler, generator)
            return self.posterior.to_user(drawn.theta)

        return redraw(
            theta,
            more,
            lambda both: self.change.inside(both[..., : self.posterior.dim]),
            "the support of the target prior; the observation and the target prior may not agree",
        )

    def _corrected(
        self, x: Tensor, shape: Sequence[int], seed: int, sampler: Sampler, how: str, progress: bool
    ) -> tuple[Tensor, Info]:
        from reprior.correction import freeze, importance_correction

        if how not in ("resample", "weights", "smc"):
            raise InputError(f"correct={how!r} is unknown; allowed: no, resample, weights, smc")
        if how == "smc":
            theta, info = replace(self, method=self.method.corrected())._draw(x, shape, seed, sampler, False, progress)
            if info.failed:
                raise RefusedError(info.failed[0])
            return theta[:, 0], info
        frozen = freeze(self, sampler)
        theta, info = frozen._draw(x, shape, seed, sampler, False, progress)
        if info.failed:
            raise RefusedError(info.failed[0])
        theta = theta[:, 0]
        log_w = importance_correction(frozen, theta, x)
        figures = {**info.figures, "relative ESS of the correction": (relative_ess(log_w),)}
        if how == "weights":
            return theta, replace(info, figures=figures, weights=log_w)
        index = systematic(log_w, len(theta), torch.Generator().manual_seed(seed + 7))
        figures["duplicates"] = (float(len(theta) - len(index.unique())),)
        return theta[index], replace(info, figures=figures)

    # Evaluate

    def log_r(self, theta: Tensor) -> Tensor:
        """log q(theta) - log p(theta), up to a constant where q is unnormalised; theta has shape (*, d)."""
        return self.change.log_r(torch.as_tensor(theta))

    def evidence_ratio(self, x: Tensor, draws: int = 10_000, seed: int = 0) -> tuple[float, float]:
        """Z(x) = q(x) / p(x) = E_p(theta|x)[r], and its standard error; a Bayes factor if q is normalised.

        The error is that of the average over base draws. It does not include the error of the base itself (see `diagnose`).
        Where mass of q outside p's support was left out, q stands for the remaining part, normalised.

        Arguments:
            x: one observation, with shape (m,) or (1, m).
            draws: base draws.
            seed: makes it repeatable.
        """
        if self.change.kind == "carried":
            raise InputError(
                "the prior that an update carries is known up to a constant only, so q(x) / p(x) is not known; log_prob is "
                "known, because the constant drops out"
            )
        if self.change.kind == "callable":
            warn("log q is a function, which may be known up to a constant only; then so is this ratio", stacklevel=2)
        log_w = self._base_weights(x, draws, seed).double()
        if self.change.outside > 0:
            log_w = log_w - math.log1p(-self.change.outside)
        top = float(log_w.max())
        r = (log_w - top).exp()
        log_z = top + math.log(float(r.mean()))
        if abs(log_z) > LARGEST_LOG:
            raise InputError(f"log q(x)/p(x) is {log_z:.6g}, so the ratio overflows double precision: normalise log q")
        return math.exp(log_z), math.exp(top) * float(r.std()) / math.sqrt(draws)

    def log_prob(self, theta: Tensor, x: Tensor, steps: int = 32, draws: int = 10_000, seed: int = 0) -> Tensor:
        """log q(theta | x) = log p(theta | x) + log r(theta) - log Z(x); -inf outside the support.

        Arguments:
            theta: parameters, with shape (*, d).
            x: one observation, with shape (m,) or (1, m).
            steps: integration steps of the base's log-density.
            draws: base draws from which Z(x) is estimated.
            seed: makes Z(x) repeatable.
        """
        theta = torch.as_tensor(theta, dtype=torch.float32).detach().cpu()
        log_p = self.posterior.log_prob(theta, x, steps)
        log_w = self._base_weights(x, draws, seed).double()
        log_z = torch.logsumexp(log_w, 0) - math.log(draws)
        inside = torch.isfinite(priors.log_prob(self.posterior.prior, theta))
        value = log_p + self.change.log_r(theta) - log_z.to(theta.dtype)
        return torch.where(inside, value, torch.full_like(value, -torch.inf))

    def _base_weights(self, x: Tensor, draws: int, seed: int) -> Tensor:
        """Log weights of base draws at one x, with shape (draws,); warns where few of them are effective."""
        x = check_x(x, self.posterior.x_dim, single=True)
        theta = self.posterior.sample((draws,), x, seed=seed)
        log_w = self.change.log_w(self.change.scale.forward(theta))
        effective = draws * relative_ess(log_w)
        if effective == 0:
            raise InputError(
                f"none of {draws} draws of the base at this x has mass under the target prior, so q(x) / p(x) is not known; "
                "raise draws, or check whether x and the target prior agree"
            )
        if effective < FEW_EFFECTIVE:
            warn(
                f"q(x) / p(x) rests on {effective:.3g} effective draws of {draws}: raise draws, or do not rely on it",
                stacklevel=3,
            )
        return log_w

    # Export

    def sbi_params(self, seed: int = 0) -> dict[str, Any]:
        """What sbi's ``sample(..., guidance_method="density_ratio", guidance_params=...)`` takes.

        Arguments:
            seed: seeds what is drawn once per observation.
        """
        from reprior.integrations.sbi_guidance import params

        return params(self, seed)

    def to_arviz(self, x: Tensor, draws: int = 4_000, seed: int = 0) -> Any:
        """The posterior before and after, both priors and x as an ArviZ DataTree (`reprior.integrations.arviz`).

        Arguments:
            x: one observation, with shape (m,) or (1, m).
            draws: the number of draws in each group.
            seed: makes them repeatable.
        """
        from reprior.integrations.arviz import to_arviz

        return to_arviz(self, x, draws, seed)

    def save(self, path: str | Path, simulations: bool = True) -> Path:
        """Writes the adapted posterior, base included, to one file (safetensors with JSON).

        Arguments:
            path: the file; ``.safetensors`` is added where there is no suffix.
            simulations: whether the stored simulations go with it (`diagnose` uses them for calibration).
        """
        from reprior.loading import adapted_parts

        tensors, meta = self.posterior.to_parts(simulations)
        more, change = adapted_parts(self)
        warn_of_lost({**meta, **change})
        return io.write(path, "adapted", tensors | more, {**meta, **change})
