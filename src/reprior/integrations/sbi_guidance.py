"""The guidance method "density_ratio" inside sbi, and what sbi's sampler must be kept from.

sbi builds a guidance object anew at every step and asks it for the score of theta_t. Here that is

    score_q(theta_t) = (m mean_q(z, s) - theta_t) / sigma^2,      z = theta_t / m,   s = sigma / m

with mean_q the guided denoiser of the adapted posterior, made once per observation and kept in `SbiGuide`, which
`adapted.sbi_params()` hands over. Methods that work on a pool of samples (rejuvenate, sir, mixtures by transport)
have no guided denoiser; theirs is the empirical one of their own draws above the noise s0 at which they let go of the
pool, E[theta_0 | z] = sum_i w_i theta_i with w_i ~ exp(-|z - theta_i|^2 / 2 s^2), and their guidance below.

Calls of ``sample`` with this method are guarded (any other call goes through untouched): ODE sampling, in which sbi
drops guidance without a word, is done by reprior's own ODE sampler; rejection uses the support of q; and for several
iid observations r is applied once, by resampling sbi's unguided draws, where guidance would apply it at each.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from sbi.inference.posteriors.vector_field_posterior import VectorFieldPosterior
from sbi.inference.potentials.vector_field_adaptor import ScoreAdaptation, register_guidance_method
from sbi.neural_nets.estimators.shape_handling import reshape_to_batch_event
from torch import Tensor

from reprior import metrics
from reprior.adapted import LOW_ESS, AdaptedPosterior
from reprior.diffusion.denoiser import Denoiser, Wrapped
from reprior.errors import InputError
from reprior.guidance.anchor import AnchorGuided, posterior_draws, precision_of
from reprior.guidance.importance import systematic
from reprior.guidance.quadratic import find_quadratic
from reprior.guidance.rejuvenate import RejuvenateGuidance
from reprior.guidance.transport import Transported
from reprior.integrations.sbi_base import SbiBase

__all__ = ["NAME", "SbiGuide", "params", "register"]

NAME = "density_ratio"
POOL = 2_000  # draws behind the empirical denoiser
BLOCK = 1_000  # rows compared with the pool at once: a block of both stays in the cache
WIDE = 3.0  # noise above this many widths of the pool sees only its mean and covariance
MOST = 1e6  # stands for the infinite noise of a flow at t = 1
IID_POOL = 4  # unguided draws per sample asked for, with iid observations


class SbiGuide:
    """An adapted posterior as sbi's sampler needs it: prepared once per observation.

    Arguments:
        adapted: an adapted posterior whose base came from sbi.
        seed: seeds what is drawn once per observation (the width of the posterior, or a pool).
    """

    def __init__(self, adapted: AdaptedPosterior, seed: int = 0):
        if not isinstance(adapted.posterior.base, SbiBase):
            raise InputError(
                "sbi_params needs a posterior that came from sbi: reprior.from_sbi(sbi_posterior, theta, x)"
            )
        self.adapted, self.seed = adapted, seed
        self.base: SbiBase = adapted.posterior.base
        self._x: Tensor | None = None
        self._denoiser: Denoiser | None = None
        self._checked: Any = None

    def denoiser(self, x: Tensor) -> Denoiser:
        """The guided denoiser at one observation, with shape (1, m)."""
        if self._denoiser is None or self._x is None or not torch.equal(self._x, x):
            generator = torch.Generator().manual_seed(self.seed)
            self._denoiser = _guided(self.adapted, self.adapted.posterior.condition(x), generator)
            self._x = x.clone()
        return self._denoiser

    @torch.no_grad()
    def score(self, theta_t: Tensor, x: Tensor, time: Tensor) -> Tensor:
        """grad log q(theta_t | x) of sbi's noisy parameters.

        Arguments:
            theta_t: noisy parameters in the user's units, with shape (*, 1, d).
            x: one observation, with shape (1, m).
            time: sbi's diffusion time, one number.
        """
        base, denoiser = self.base, self.denoiser(x.cpu())
        level = torch.tensor(min(base.kernel.level(float(time)), MOST), dtype=torch.float64)
        m = base.kernel.at(level)[1]
        s = float(level) / base.unit
        asked = min(s, denoiser.s_max)
        # Above the guidance's largest noise the mean goes with z / s^2, as in `SbiBase.denoise`.
        z = (asked / s) ** 2 * (theta_t / m.to(theta_t) - base.offset) / base.unit
        mean = base.offset + base.unit * denoiser.mean(z, z.new_tensor(asked))
        return (m.to(mean) * mean - theta_t) / (level * m).square().to(mean)

    def check(self, estimator: Any) -> None:
        """Refuses to guide another estimator than the one that was adapted."""
        if self._checked is estimator:
            return
        ours, theirs = self.base.estimator.net.state_dict(), estimator.net.state_dict()
        same = ours.keys() == theirs.keys() and all(
            ours[k].shape == theirs[k].shape and torch.equal(ours[k].cpu(), theirs[k].cpu()) for k in ours
        )
        if not same:
            raise InputError("guidance_params belong to another posterior: adapt this one with reprior.from_sbi")
        self._checked = estimator


@dataclass(frozen=True)
class DensityRatioConfig:
    """The settings sbi passes on.

    Attributes:
        guide: what `AdaptedPosterior.sbi_params` made.
    """

    guide: SbiGuide

    def __post_init__(self) -> None:
        if not isinstance(self.guide, SbiGuide):
            raise InputError(f"guidance_params must be adapted.sbi_params(); guide is a {type(self.guide).__name__}")


class DensityRatio(ScoreAdaptation):
    """The guided score; sbi makes one of these at every step."""

    def __init__(self, vf_estimator: Any, prior: Any, config: DensityRatioConfig, device: Any = "cpu"):
        super().__init__(vf_estimator, prior, device)
        self.guide = config.guide
        self.guide.check(vf_estimator)

    def __getattr__(self, name: str) -> Any:
        if name == "vf_estimator" or name.startswith("__"):  # a copy asks before it has any: sbi's own recurses
            raise AttributeError(name)
        return getattr(self.vf_estimator, name)

    def __call__(self, input: Tensor, condition: Tensor, time: Tensor | None = None) -> Tensor:
        if condition.shape[0] != 1:
            raise InputError(
                f"{condition.shape[0]} observations: guidance would apply the change of prior at each of them; use "
                "posterior.sample(..., guidance_method='density_ratio'), which applies it once"
            )
        if time is None:
            time = torch.tensor(self.vf_estimator.t_min)
        return self.guide.score(input, condition.flatten(1), time.reshape(-1)[0])


class _Pooled(Wrapped):
    """The empirical denoiser of a pool above the noise s0 (linear where the noise is far wider), another one below.

    Arguments:
        below: the denoiser up to s0.
        pool: draws of q(theta | x), with shape (n, d).
        s0: the noise level between the two.
    """

    def __init__(self, below: Denoiser, pool: Tensor, s0: float):
        super().__init__(below)
        self.pool, self.s0 = pool, s0
        self.centre = pool.mean(0)
        self.cov = torch.cov(pool.T).reshape(pool.shape[1], pool.shape[1])
        self.half = pool.square().sum(1) / 2

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        level = float(s)
        if level <= self.s0:
            return self.inner.mean(z, s)
        if level > WIDE * float(self.cov.diagonal().amax().sqrt()):
            noise = level**2 * torch.eye(len(self.cov), dtype=z.dtype, device=z.device)
            gain = torch.linalg.solve(self.cov + noise, self.cov)  # C (C + s^2 I)^-1: the two commute
            return self.centre + (z - self.centre) @ gain
        parts = []
        for part in z.reshape(-1, z.shape[-1]).split(BLOCK):
            logits = torch.addmm(-self.half, part, self.pool.T) / level**2
            parts.append(torch.softmax(logits, 1) @ self.pool)
        return torch.cat(parts).reshape(z.shape)


def _guided(adapted: AdaptedPosterior, denoiser: Denoiser, generator: torch.Generator) -> Denoiser:
    """The denoiser of q(theta | x) at one observation, for any method."""
    guidance = adapted.guidance
    try:
        return guidance.guide(denoiser, generator)
    except InputError:  # a method that works on a pool
        pool, notes = guidance.draw(denoiser, POOL, adapted.sampler, generator)
    pool = pool[:, 0]
    width = float(pool.std(0).mean())
    quadratic = find_quadratic(adapted.change)
    s0 = width * POOL ** (-1 / (denoiser.dim + 4))
    if isinstance(guidance, RejuvenateGuidance):
        s0 = float(notes["s0"][0])
        if guidance.below == "transport":
            return _Pooled(Transported(denoiser, quadratic), pool, s0)
    if not adapted.change.differentiable:
        return _Pooled(denoiser, pool, s0)
    precision = precision_of(posterior_draws(denoiser, generator), len(quadratic.h))
    return _Pooled(AnchorGuided(denoiser, adapted.change, quadratic, precision), pool, s0)


def params(adapted: AdaptedPosterior, seed: int = 0) -> dict[str, Any]:
    """The ``guidance_params`` of sbi's sample for an adapted posterior."""
    register()
    return {"guide": SbiGuide(adapted, seed)}


class _Inside:
    """Stands for the prior in sbi's rejection: a finite log-density where p and q have mass."""

    def __init__(self, adapted: AdaptedPosterior):
        self.adapted = adapted

    def log_prob(self, theta: Tensor) -> Tensor:
        inside = self.adapted.change.inside(theta.cpu()).to(theta.device)
        return torch.where(inside, 0.0, -torch.inf)


def register() -> None:
    """Registers the method with sbi and guards sbi's ``sample`` for it; a second call does nothing."""
    register_guidance_method(NAME, DensityRatioConfig)(DensityRatio)
    if hasattr(VectorFieldPosterior.sample, "reprior_guard"):
        return
    original = VectorFieldPosterior.sample
    signature = inspect.signature(original)

    @functools.wraps(original)
    def sample(self: VectorFieldPosterior, *args: Any, **kwargs: Any) -> Tensor:
        call = signature.bind(self, *args, **kwargs)
        if call.arguments.get("guidance_method") != NAME:
            return original(self, *args, **kwargs)
        return _sample(original, self, call)

    sample.reprior_guard = True  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
    VectorFieldPosterior.sample = sample


def _sample(original: Any, posterior: VectorFieldPosterior, call: inspect.BoundArguments) -> Tensor:
    options = {k: v for k, v in call.arguments.items() if k != "self"}
    guide = DensityRatioConfig(**(options.get("guidance_params") or {})).guide
    guide.check(posterior.vector_field_estimator)
    shape = torch.Size(options.pop("sample_shape", ()))
    estimator = posterior.vector_field_estimator
    x = reshape_to_batch_event(posterior._x_else_default_x(options.get("x")), estimator.condition_shape)
    if x.shape[0] > 1:
        return _iid(original, posterior, guide, shape, options)
    if (options.get("sample_with") or posterior.sample_with) == "ode":
        return guide.adapted.sample(shape or (1,), x.flatten(1).cpu()).reshape(*shape, -1).to(x.device)
    guarded = object.__new__(type(posterior))  # copy.copy would share the attributes with the original
    guarded.__dict__ = dict(posterior.__dict__)
    guarded.prior = _Inside(guide.adapted)  # pyright: ignore[reportAttributeAccessIssue]
    return original(guarded, shape, **options)


def _iid(original: Any, posterior: Any, guide: SbiGuide, shape: torch.Size, options: dict[str, Any]) -> Tensor:
    """Draws of p(theta | x_1, ..., x_N), by sbi without guidance, resampled by r once."""
    free = {k: v for k, v in options.items() if k not in ("guidance_method", "guidance_params")}
    n = shape.numel()
    pool = original(posterior, (IID_POOL * n,), **free)
    log_w = guide.adapted.change.log_r(pool.cpu())
    index = systematic(log_w, n, torch.Generator().manual_seed(guide.seed))
    ess, copies = metrics.ess(log_w), n - len(index.unique())
    if ess < max(LOW_ESS, 1 / IID_POOL):
        warnings.warn(
            f"iid observations: r was applied once, to {len(pool)} unguided draws, of which {ess * len(pool):.0f} count "
            f"(ESS/N {ess:.2g}); {copies} of the {n} samples are copies of others",
            stacklevel=3,
        )
    return pool[index.to(pool.device)].reshape(*shape, -1)
