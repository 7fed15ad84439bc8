"""The guidance method "density_ratio" inside sbi, with guards against errors of sbi's guided sampling.

sbi builds a new guidance object at every step and gets the score of theta_t from it. Here that is

    score_q(theta_t) = (m mean_q(z, s) - theta_t) / sigma^2,      z = theta_t / m,   s = sigma / m

with mean_q the guided denoiser of the adapted posterior, made once per observation and kept in `SbiGuide`, which
`adapted.sbi_params()` hands over.

Calls of ``sample`` with this method are guarded; other calls are unchanged. In ODE sampling sbi ignores guidance silently,
so reprior's own sampler draws there. It also draws for methods without a guided denoiser (those that resample, for
instance). Rejection uses the support of q. For several iid observations r is applied once, by resampling sbi's unguided
draws, because guidance would apply it once per observation.
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

from reprior.adapted import AdaptedPosterior
from reprior.diffusion.denoiser import Denoiser
from reprior.errors import InputError, RefusedError
from reprior.integrations.sbi_base import SbiBase
from reprior.weights import relative_ess, systematic

__all__ = ["NAME", "SbiGuide", "params", "register"]

NAME = "density_ratio"
MOST = 1e6  # noise in sbi's units of theta, in place of the infinite noise of a flow at t = 1
IID_POOL = (
    4  # unguided draws per requested sample with iid observations: no duplicates while no weight is above 4 x average
)


class SbiGuide:
    """An adapted posterior for sbi's sampler, with a guided denoiser that is made once per observation.

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

    def denoiser(self, x: Tensor) -> Denoiser | None:
        """The guided denoiser at one observation, with shape (1, m); None where the method has only draws."""
        if self._x is None or not torch.equal(self._x, x):
            generator = torch.Generator().manual_seed(self.seed)
            try:
                self._denoiser = self.adapted.method.guide(self.adapted.posterior.condition(x), generator)
            except RefusedError:
                self._denoiser = None
            self._x = x.clone()
        return self._denoiser

    @torch.no_grad()
    def score(self, theta_t: Tensor, x: Tensor, time: float) -> Tensor:
        """grad log q(theta_t | x) of sbi's noisy parameters.

        Arguments:
            theta_t: noisy parameters in the user's units, with shape (*, 1, d).
            x: one observation, with shape (1, m).
            time: sbi's diffusion time, one number.
        """
        base, denoiser = self.base, self.denoiser(x.cpu())
        if denoiser is None:
            raise InputError(
                f"method {self.adapted.method.name!r} works on draws and has no score at this x: use "
                "posterior.sample(..., guidance_method='density_ratio'), or adapted.sample"
            )
        level = torch.tensor(min(base.process.level(time), MOST), dtype=torch.float64)
        m = base.process.at(level)[1]
        s = float(level) / base.unit
        asked = min(s, denoiser.s_max)
        # Above the guidance's largest noise the mean is linear in z / s^2, as in `SbiBase.denoise`.
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
        if name == "vf_estimator" or name.startswith("__"):  # copy looks these up before they exist: sbi's own recurses
            raise AttributeError(name)
        return getattr(self.vf_estimator, name)

    def __call__(self, input: Tensor, condition: Tensor, time: Tensor | None = None) -> Tensor:
        if condition.shape[0] != 1:
            raise InputError(
                f"{condition.shape[0]} observations: guidance would apply the change of prior at each of them; use "
                "posterior.sample(..., guidance_method='density_ratio'), which applies it once"
            )
        if time is None:  # sbi's own default
            time = input.new_tensor(float(self.vf_estimator.t_min))
        return self.guide.score(input, condition.flatten(1), float(time.reshape(-1)[0]))


def params(adapted: AdaptedPosterior, seed: int = 0) -> dict[str, Any]:
    """The ``guidance_params`` of sbi's sample for an adapted posterior."""
    register()
    if adapted.method.corrections:
        warnings.warn(
            f"method {adapted.method.name!r} needs {adapted.method.corrections} Langevin corrections after each step: pass "
            "corrector='langevin' to sbi's sample",
            stacklevel=3,
        )
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
    own = (options.get("sample_with") or posterior.sample_with) == "ode"
    if own or guide.denoiser(x.flatten(1).cpu()) is None:
        return guide.adapted.sample(shape or (1,), x.flatten(1).cpu()).reshape(*shape, -1).to(guide.base.offset.device)
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
    ess, copies = relative_ess(log_w), n - len(index.unique())
    if ess < 1 / IID_POOL:
        warnings.warn(
            f"iid observations: r was applied once, to {len(pool)} unguided draws with a relative ESS of {ess:.2g}; {copies} "
            f"of the {n} samples are copies of others",
            stacklevel=3,
        )
    return pool[index.to(pool.device)].reshape(*shape, -1)
