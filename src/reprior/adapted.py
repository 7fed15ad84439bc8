"""Change the prior: `adapt` gives an `AdaptedPosterior`, which samples q(theta | x) with no new simulations.

The three things that follow from r = q/p once p(theta | x) can be sampled and evaluated are here too:

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
from typing import Any
from warnings import warn

import torch
from torch import Tensor

from reprior import io, priors
from reprior_bench import metrics
from reprior.change import PriorChange, make_change
from reprior.diffusion.sampler import Sampler, chunked
from reprior.distance import warned
from reprior.errors import InputError
from reprior.methods.method import Guidance
from reprior.methods.registry import METHODS, build_guidance
from reprior.info import Info
from reprior.posterior import Posterior, as_shape, check_seed, check_x, fresh_seed, redraw, warn_of_lost
from reprior.weights import pareto_k, share

__all__ = ["AdaptedPosterior", "adapt"]

CHECK_DRAWS = 2_000  # base draws behind ESS, k-hat and Z(x)
CHECK_SAMPLER = Sampler(steps=20)
LOW_ESS = 0.01
HIGH_K = 0.7
LARGEST_LOG = 700.0  # exp of more is no number in double precision
FEW_EFFECTIVE = 100  # effective draws behind Z(x) below which its error is some 10 %


def adapt(
    posterior: Posterior | Any,
    target: Any,
    method: str = "auto",
    settings: Any = None,
    seed: int = 0,
    accept_outside: bool = False,
    observed: Tensor | None = None,
    progress: bool = False,
    cache: str | os.PathLike[str] | None = None,
) -> AdaptedPosterior:
    """Changes the prior of a posterior. No simulator is called and the base is left as it is.

    Arguments:
        posterior: the base posterior, trained under p; or an NPE, NLE or NRE posterior of sbi (resampled).
        target: the target prior q: a torch Distribution, a list of them, a scipy distribution, a callable log-density
            (up to a constant), or samples with shape (n, d).
        method: "auto", or one of `reprior.methods.registry.METHODS`.
        settings: the method's settings; "paper" or "best" name presets of the learned ones.
        seed: the same seed gives the same adapted posterior on the same machine.
        accept_outside: go on although q has mass outside p's support.
        observed: for `AdaptedPosterior.predict` with a learned method: which entries of x are observed, with shape (m,).
        progress: show progress bars.
        cache: a folder where a learned method keeps its base draws, so that another estimator, or a call that was cut
            off, need not draw them again.
    """
    if method not in METHODS:
        raise InputError(f"method {method!r} is unknown; allowed: {', '.join(METHODS)}")
    if not isinstance(posterior, Posterior):
        from reprior.integrations.sbi import adapt_sbi

        return adapt_sbi(posterior, target, method, settings, seed, accept_outside)
    seed = check_seed(seed)
    change = make_change(posterior.prior, target, posterior.scales.theta, seed, accept_outside)
    warnings = []
    if change.outside > 0:
        warnings.append(
            f"{100 * change.outside:.3g} % of the target prior's mass lies outside the prior's support and is left out"
        )
    if change.same and method != "none":
        guidance, why = build_guidance("none", posterior, change, None, seed, observed, progress)
        where = " inside its support" if change.outside > 0 else ""
        why = f"the target prior equals the prior{where}, so nothing changes"
    else:
        guidance, why = build_guidance(method, posterior, change, settings, seed, observed, progress, cache)
    return AdaptedPosterior(posterior, change, guidance, why, tuple(warnings), posterior.sampler)


@dataclass(frozen=True)
class AdaptedPosterior:
    """q(theta | x), from a posterior p(theta | x) and a change of prior.

    Attributes:
        posterior: the base posterior.
        change: the change of prior.
        guidance: the method.
        why: one sentence: why this method.
        warnings: what there is to warn of, whatever x.
        sampler: the sampler; the base's default.
    """

    posterior: Posterior
    change: PriorChange
    guidance: Guidance
    why: str = ""
    warnings: tuple[str, ...] = ()
    sampler: Sampler = field(default_factory=Sampler)

    def __repr__(self) -> str:
        return f"AdaptedPosterior({self.method}: {self.why}; {self.posterior!r})"

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.guidance.name

    def to(self, device: str | torch.device) -> AdaptedPosterior:
        """The same adapted posterior on another device, base and learned networks included."""
        if not isinstance(self.posterior, Posterior):
            raise InputError("this base is no diffusion of reprior: move the sbi posterior itself, and adapt it again")
        posterior = self.posterior.to(device)
        return replace(self, posterior=posterior, guidance=self.guidance.to(posterior))

    def sample(
        self,
        shape: int | Sequence[int],
        x: Tensor,
        seed: int | None = None,
        sampler: Sampler | None = None,
        correct: str = "no",
        return_info: bool = False,
        show_progress_bars: bool = False,
    ) -> Any:
        """Draws theta ~ q(theta | x) for one observation.

        Arguments:
            shape: the sample shape, (n,) or n.
            x: one observation, with shape (m,) or (1, m).
            seed: makes the draws repeatable.
            sampler: another sampler than the default.
            correct: "no"; "resample" the draws towards the exact target with the base's own densities; or "weights", to
                return them with their log weights in the info.
            return_info: also return an `Info`.
            show_progress_bars: no bar is shown; taken so that sbi's diagnostics (run_sbc, run_tarp) can call this.

        Returns: theta, with shape (*shape, d), or (theta, info).
        """
        shape = as_shape(shape)
        x = check_x(x, self.posterior.x_dim, single=True)
        if correct == "weights" and not return_info:
            raise InputError(
                "correct='weights' gives the weights in the info: pass return_info=True, or correct='resample'"
            )
        if correct == "no":
            theta, info = self._draw(x, shape, seed, sampler or self.sampler, False)
            theta = theta[:, 0]
        else:
            theta, info = self._corrected(x, shape, fresh_seed() if seed is None else seed, sampler, correct)
        theta = theta.reshape(*shape, self.posterior.dim)
        base = self.posterior
        return (theta, warned(info, base.simulations, base.scales.x, x)) if return_info else theta

    def sample_batched(
        self,
        shape: int | Sequence[int],
        x: Tensor,
        seed: int | None = None,
        sampler: Sampler | None = None,
        return_info: bool = False,
        show_progress_bars: bool = False,
    ) -> Any:
        """Draws theta for many observations, x with shape (B, m). Returns theta with shape (*shape, B, d)."""
        shape = as_shape(shape)
        x = check_x(x, self.posterior.x_dim)
        theta, info = self._draw(x, shape, seed, sampler or self.sampler, False)
        theta = theta.reshape(*shape, len(x), self.posterior.dim)
        return (theta, info) if return_info else theta

    def predict(
        self,
        shape: int | Sequence[int],
        x: Tensor,
        seed: int | None = None,
        sampler: Sampler | None = None,
        return_info: bool = False,
    ) -> Any:
        """Draws q(theta, x_missing | x_observed); arguments and result as in `Posterior.predict`."""
        shape = as_shape(shape)
        x = check_x(x, self.posterior.x_dim, single=True, missing=True)
        both, info = self._draw(x, shape, seed, sampler or self.sampler, True)
        theta, full = self.posterior.split_prediction(both[:, 0], x[0])
        theta = theta.reshape(*shape, self.posterior.dim)
        full = full.reshape(*shape, self.posterior.x_dim)
        return (theta, full, info) if return_info else (theta, full)

    def _draw(
        self, x: Tensor, shape: Sequence[int], seed: int | None, sampler: Sampler, predict: bool
    ) -> tuple[Tensor, Info]:
        n = int(torch.Size(shape).numel())
        if n < 1:
            raise InputError(f"the sample shape must hold at least one sample; got {tuple(shape)}")
        if self.guidance.corrections and not sampler.corrections:
            sampler = replace(sampler, corrections=self.guidance.corrections)
        began = time.monotonic()
        generator = torch.Generator().manual_seed(fresh_seed() if seed is None else seed)
        denoiser = self.posterior.condition(x, predict)
        z, notes = self.guidance.draw(denoiser, n, sampler, generator)
        theta, rejected = self._fill(self.posterior.to_user(z), denoiser, sampler, generator)
        log_w = notes.pop("log_w", None)
        if log_w is None:
            log_w = self.change.log_w(chunked(denoiser, CHECK_DRAWS, CHECK_SAMPLER, generator)).cpu()
        notes, warnings = _judge(log_w, notes)
        seconds = time.monotonic() - began
        info = Info(self.method, n, len(x), seconds, rejected, self.why, (*self.warnings, *warnings), notes)
        return theta, info

    def _fill(self, theta: Tensor, denoiser: Any, sampler: Sampler, generator: Any) -> tuple[Tensor, float]:
        """Draws again what fell outside the support of p or q; also gives the fraction that did."""
        return redraw(
            theta,
            lambda count: self.posterior.to_user(self.guidance.draw(denoiser, max(10, count), sampler, generator)[0]),
            lambda both: self.change.inside(both[..., : self.posterior.dim]),
            "the support of the target prior; the observation and the target prior may not agree",
        )

    def _corrected(
        self, x: Tensor, shape: Sequence[int], seed: int, sampler: Sampler | None, how: str
    ) -> tuple[Tensor, Info]:
        from reprior.correction import fix, importance_correction

        if how not in ("resample", "weights"):
            raise InputError(f"correct={how!r} is unknown; allowed: no, resample, weights")
        fixed = fix(self, sampler or self.sampler)
        theta, info = fixed._draw(x, shape, seed, sampler or self.sampler, False)
        theta = theta[:, 0]
        log_w = importance_correction(fixed, theta, x)
        ess = metrics.ess(log_w)
        details = {**info.details, "correction_ess": ess}
        if how == "weights":
            return theta, replace(info, details={**details, "log_weights": log_w})
        from reprior.methods.sir import systematic

        index = systematic(log_w, len(theta), torch.Generator().manual_seed(seed + 7))
        details["correction_duplicates"] = len(theta) - len(index.unique())
        return theta[index], replace(info, details=details)

    def log_r(self, theta: Tensor) -> Tensor:
        """log q(theta) - log p(theta), up to a constant where q is unnormalised; theta has shape (*, d)."""
        return self.change.log_r(torch.as_tensor(theta))

    def evidence_ratio(self, x: Tensor, draws: int = 10_000, seed: int = 0) -> tuple[float, float]:
        """Z(x) = q(x) / p(x) = E_p(theta|x)[r], and its standard error; a Bayes factor if q is normalised.

        The error is that of the average over base draws: how wrong the base itself is, it cannot tell (`diagnose` looks).
        Where mass of q outside p's support was left out (``accept_outside``), q is what is left of it, normalised.

        Arguments:
            x: one observation, with shape (m,) or (1, m).
            draws: base draws.
            seed: makes it repeatable.
        """
        if self.change.kind == "carried":
            raise InputError(
                "the prior that an update carries is known up to a constant only, so q(x) / p(x) is not known; log_prob is, as "
                "the constant drops out"
            )
        if self.change.kind == "callable":
            warn("log q was given as a function, maybe up to a constant: then this ratio is too", stacklevel=2)
        log_w = self._log_w_draws(x, draws, seed).double()
        if self.change.outside > 0:
            log_w = log_w - math.log1p(-self.change.outside)
        top = float(log_w.max())
        r = (log_w - top).exp()
        log_z = top + math.log(float(r.mean()))
        if abs(log_z) > LARGEST_LOG:
            raise InputError(
                f"log q(x)/p(x) is {log_z:.6g}, so the ratio itself is no number: normalise log q, or take off its constant"
            )
        return math.exp(log_z), math.exp(top) * float(r.std()) / math.sqrt(draws)

    def _log_w_draws(self, x: Tensor, draws: int, seed: int) -> Tensor:
        x = check_x(x, self.posterior.x_dim, single=True)
        theta = self.posterior.sample((draws,), x, seed=seed)
        log_w = self.change.log_w(self.change.scale.forward(theta))
        effective = draws * share(log_w)
        if effective == 0:
            raise InputError(
                f"none of {draws} draws of the base at this x has mass under the target prior, so q(x) / p(x) is not known; "
                "raise draws, or look whether x and the target prior agree"
            )
        if effective < FEW_EFFECTIVE:
            warn(
                f"q(x) / p(x) rests on {effective:.3g} effective draws of {draws}: raise draws, or do not rely on it",
                stacklevel=3,
            )
        return log_w

    def log_prob(self, theta: Tensor, x: Tensor, steps: int = 32, draws: int = 10_000, seed: int = 0) -> Tensor:
        """log q(theta | x) = log p(theta | x) + log r(theta) - log Z(x); -inf outside the support.

        Arguments:
            theta: parameters, with shape (*, d).
            x: one observation, with shape (m,) or (1, m).
            steps: integration steps of the base's log-density.
            draws: base draws behind Z(x).
            seed: makes Z(x) repeatable.
        """
        theta = torch.as_tensor(theta, dtype=torch.float32).detach().cpu()
        log_p = self.posterior.log_prob(theta, x, steps)
        log_w = self._log_w_draws(x, draws, seed).double()
        log_z = torch.logsumexp(log_w, 0) - math.log(draws)
        inside = torch.isfinite(priors.log_prob(self.posterior.prior, theta))
        value = log_p + self.change.log_r(theta) - log_z.to(theta.dtype)
        return torch.where(inside, value, torch.full_like(value, -torch.inf))

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

    def save(self, path: str | Path, simulations: bool = False) -> Path:
        """Writes the adapted posterior, base included, to one file (safetensors with JSON).

        Arguments:
            path: the file; ``.safetensors`` is added where there is no suffix.
            simulations: whether the stored simulations go with it (`diagnose` uses them for calibration).
        """
        tensors, meta = self.posterior.to_parts(simulations)
        more, change = self.to_parts()
        warn_of_lost({**meta, **change})
        return io.write(path, "adapted", tensors | more, {**meta, **change})

    def to_parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and plain data of the change of prior, without the base."""
        tensors = {f"guidance.{k}": v for k, v in self.guidance.tensors().items()}
        log_r = self.change.log_q
        learned: Any = log_r if self.change.is_ratio and isinstance(log_r, torch.nn.Module) else None
        if learned is not None:
            tensors |= {f"target.{k}": v for k, v in learned.state_dict().items()}
        if self.change.region is not None:
            tensors["region"] = self.change.region
        points = None if self.change.is_ratio else self.change.mark_points()
        meta = {
            "target": priors.to_dict(self.change.target) if self.change.target is not None else None,
            "target_kind": self.change.kind,
            "target_config": None if learned is None else learned.config(),
            "target_mark": None if points is None else self.change.mark(points).tolist(),
            "target_points": None if points is None else points.tolist(),
            "outside": None if math.isnan(self.change.outside) else self.change.outside,
            "method": self.method,
            "guidance": self.guidance.config(),
            "why": self.why,
            "warnings": list(self.warnings),
            "adapted_sampler": vars(self.sampler),
        }
        return {k: v.detach().cpu().contiguous() for k, v in tensors.items()}, meta


def _judge(log_w: Tensor, notes: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """ESS/N and k-hat of the prior-ratio weights, and what they warn of."""
    ess = [share(log_w[:, k]) for k in range(log_w.shape[1])]
    k_hat = [pareto_k(log_w[:, k]) for k in range(log_w.shape[1])]
    warnings = []
    if min(ess) < LOW_ESS:
        warnings.append(
            f"ESS/N of the prior-ratio weights is {min(ess):.2g}: the target prior is hardly covered by the base samples"
        )
    elif max(k_hat) > HIGH_K:
        warnings.append(
            f"Pareto k-hat of the prior-ratio weights is {max(k_hat):.2f} (> {HIGH_K}): heavy-tailed weights"
        )
    one = len(ess) == 1
    rest = {k: (v[0] if one and isinstance(v, list) and len(v) == 1 else v) for k, v in notes.items()}
    return {**rest, "ess": ess[0] if one else ess, "k_hat": k_hat[0] if one else k_hat}, warnings
