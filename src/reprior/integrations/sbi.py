"""sbi posteriors with a new prior, and reprior's guidance inside sbi.

    posterior = reprior.from_sbi(sbi_posterior, theta, x)     # NPSE or FMPE; theta, x, _ = trainer.get_simulations()
    adapted = reprior.adapt(posterior, q)

or, inside sbi's own interface (importing this module registers the method with sbi):

    sbi_posterior.sample((n,), x=x_o, guidance_method="density_ratio", guidance_params=adapted.sbi_params())

NPE, NLE and NRE posteriors have no diffusion; `reprior.adapt(sbi_posterior, q)` resamples them (`sbi_sampled`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from reprior import priors
from reprior.errors import InputError
from reprior.extras import need

__all__ = ["SUPPORTED", "adapt_sbi", "check_version", "from_sbi", "to_sbi"]

SUPPORTED = "0.27"
SHORT_NOISE = 3.0  # standard deviations of theta: a base whose largest noise is lower starts its samples wrongly
COARSE = (
    0.03  # standard deviations of the narrowest parameter: a base whose lowest noise is higher blurs its posteriors
)
UNEVEN = 30.0  # ratio of the widest to the narrowest parameter above which one noise level for all does not suit both
MANY_PRIORS = (
    "build_posterior(prior=q) does not change an NPE, NPSE or FMPE posterior: if you used it, pass the prior of the simulations "
    "as from_sbi(..., prior=p). Simulations of several rounds do not follow the prior either"
)


def check_version(version: str) -> None:
    """Refuses other versions of sbi, because this module uses internals of its estimators and sampler."""
    if version.split(".")[:2] != SUPPORTED.split("."):
        raise ImportError(
            f"reprior works with sbi {SUPPORTED}.x; sbi {version} is installed. "
            f"Use: pip install 'sbi>={SUPPORTED},<0.28'"
        )


need("sbi", "sbi", "working with sbi posteriors")
check_version(metadata.version("sbi"))

from sbi.inference.posteriors.base_posterior import NeuralPosterior  # noqa: E402
from sbi.inference.posteriors.vector_field_posterior import VectorFieldPosterior  # noqa: E402
from sbi.utils import process_prior  # noqa: E402

from reprior.adapted import AdaptedPosterior  # noqa: E402
from reprior.integrations import sbi_guidance  # noqa: E402
from reprior.integrations.sbi_base import SbiBase  # noqa: E402
from reprior.integrations.sbi_sampled import SampledPosterior, adapt_sampled, wrap  # noqa: E402
from reprior.posterior import Posterior, Scales  # noqa: E402
from reprior.simulations import Simulations  # noqa: E402

sbi_guidance.register()


def from_sbi(
    sbi_posterior: Any,
    theta: Tensor,
    x: Tensor,
    prior: Any = None,
    parameters: Sequence[str] | None = None,
) -> Any:
    """A posterior that reprior can adapt, from a trained sbi posterior.

    Arguments:
        sbi_posterior: the result of ``trainer.build_posterior()``. NPSE (ve, vp, subvp) and FMPE become a `Posterior`
            with their networks, embedding nets and z-scoring; any other becomes a `SampledPosterior`.
        theta: the simulated parameters, with shape (n, d), as ``trainer.get_simulations()`` gives them.
        x: their data, with shape (n, m) or (n, ...); the entries of one observation are flattened.
        prior: the prior that theta was drawn from, where the sbi posterior holds another one.
        parameters: the names of the parameters.

    Returns: a posterior for `reprior.adapt`, `sample` and, where sbi has it, `log_prob`; NPSE and FMPE also for `save`.
    """
    kept = cpu_prior(prior_of(sbi_posterior) if prior is None else prior)
    theta, x = torch.as_tensor(theta).detach().cpu(), torch.as_tensor(x).detach().cpu().flatten(1)
    if not isinstance(sbi_posterior, VectorFieldPosterior):
        simulations = Simulations.create(theta, x, prior=kept, parameters=parameters)
        sampled = wrap(sbi_posterior, kept, simulations, simulations.parameters)
        if not sampled.likelihood:  # a likelihood or a ratio may be learned from any theta
            simulations.warn_if_not_drawn(MANY_PRIORS)
        return sampled
    estimator = sbi_posterior.vector_field_estimator
    sizes = (estimator.input_shape.numel(), estimator.condition_shape.numel())
    if (theta.shape[-1], x.shape[-1]) != sizes:
        raise InputError(
            f"this sbi posterior has {sizes[0]} parameters and {sizes[1]} entries of x; theta has shape "
            f"{tuple(theta.shape)} and x (flattened) {tuple(x.shape)}"
        )
    missing = "keep" if bool(torch.isnan(x).any()) and _takes_nan(estimator, x) else "drop"
    simulations = Simulations.create(theta, x, prior=kept, parameters=parameters, missing=missing)
    simulations.warn_if_not_drawn(MANY_PRIORS)
    base, theta_scale, x_scale = SbiBase.create(estimator, simulations.theta, simulations.x)
    base.takes_missing = missing == "keep"
    _check_noise(base, estimator, simulations.theta)
    return Posterior(base, Scales(theta_scale, x_scale), kept, simulations, simulations.parameters)


def to_sbi(posterior: Posterior) -> VectorFieldPosterior:
    """The sbi posterior again, from what `from_sbi` made (or `reprior.load` read)."""
    if not isinstance(posterior, Posterior) or not isinstance(posterior.base, SbiBase):
        raise InputError("to_sbi takes a posterior that from_sbi made")
    flow = posterior.base.process.kind == "flow"
    prior = posterior.prior.parts if isinstance(posterior.prior, priors.Product) else posterior.prior
    prior, _, _ = process_prior(prior)  # sbi takes torch distributions, and wraps what is none
    return VectorFieldPosterior(posterior.base.to_estimator(), prior, sample_with="ode" if flow else "sde")


def adapt_sbi(
    posterior: Any, target: Any, method: str, settings: Any, seed: int, accept_outside: bool
) -> AdaptedPosterior:
    """`reprior.adapt` for a posterior of sbi; arguments as there."""
    if isinstance(posterior, SampledPosterior):
        return adapt_sampled(posterior, target, method, settings, seed, accept_outside)
    p = prior_of(posterior)
    if isinstance(posterior, VectorFieldPosterior):
        raise InputError(
            "NPSE and FMPE posteriors go through reprior.from_sbi(sbi_posterior, theta, x) first, with the simulations they "
            "were trained on: theta, x, _ = trainer.get_simulations()"
        )
    return adapt_sampled(wrap(posterior, cpu_prior(p)), target, method, settings, seed, accept_outside)


def prior_of(posterior: Any) -> Any:
    """The prior of an sbi posterior; refuses any other object."""
    if not isinstance(posterior, NeuralPosterior):
        hint = "; call its build_posterior() first" if hasattr(posterior, "build_posterior") else ""
        if type(posterior).__name__ == "AdaptedPosterior":
            hint = ": adapt its base, adapted.posterior, to the new target prior"
        raise InputError(f"a reprior Posterior or an sbi posterior is needed; got {type(posterior).__name__}{hint}")
    found = getattr(posterior, "prior", None) or getattr(posterior.potential_fn, "prior", None)
    if found is None:
        raise InputError(f"this {type(posterior).__name__} has no prior; build it with build_posterior(prior=...)")
    return found


def cpu_prior(prior: Any) -> Any:
    """A prior on the CPU; a plain distribution is rebuilt, so that it does not depend on sbi's object."""
    inner = prior
    while type(inner).__name__ in ("PytorchReturnTypeWrapper", "OneDimPriorWrapper"):
        inner = inner.prior
    plain = priors.from_dict(priors.to_dict(inner)) if not isinstance(inner, (list, tuple)) else None
    if plain is not None:
        return priors.as_prior(plain)
    return priors.as_prior(prior)


def _takes_nan(estimator: Any, x: Tensor) -> bool:
    """Whether the embedding net accepts missing entries: whether a row with NaN gives a finite embedding."""
    row = x[torch.isnan(x).any(1)][:1]
    with torch.no_grad():
        device = next(estimator.buffers()).device
        code = estimator.embedding_net(row.reshape(-1, *estimator.condition_shape).to(device))
    return bool(torch.isfinite(code).all())


def _check_noise(base: SbiBase, estimator: Any, theta: Tensor) -> None:
    """Warns if the trained noise levels do not suit the scales of the parameters."""
    if estimator.compose_enabled:
        return
    spread = theta.std(0)
    uneven = float(spread.max() / spread.clamp(min=1e-30).min())
    advice = "train it with posterior_score_nn(..., compose_standardization=True), or on scaled parameters"
    if base.s_max < SHORT_NOISE:
        warnings.warn(
            f"the largest noise this posterior was trained with is only {base.s_max:.2g} standard deviations of theta, so "
            f"samples of wide posteriors start wrongly, in sbi too; {advice}",
            stacklevel=3,
        )
    elif base.s_min > COARSE * base.narrowest:
        warnings.warn(
            f"the lowest noise this posterior was trained with is {base.s_min / base.narrowest:.2g} standard deviations of the "
            f"narrowest parameter: posteriors about as narrow as that come out wrong, in sbi too; {advice}",
            stacklevel=3,
        )
    elif uneven > UNEVEN:
        warnings.warn(
            f"the parameters differ in scale by a factor {uneven:.0f}, and sbi added the same noise to all; {advice}",
            stacklevel=3,
        )
