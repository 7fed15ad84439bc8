"""Reading posteriors back from files."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reprior import io, priors
from reprior.adapted import AdaptedPosterior
from reprior.change import PriorChange, make_change, outer_of, reach_of
from reprior.diffusion.sampler import Sampler
from reprior.networks.fit import Training
from reprior.errors import FileFormatError, InputError
from reprior.methods.learned.guidance import DensityRatioGuidance, RatioModel, RatioSettings
from reprior.methods.method import Guidance
from reprior.methods.registry import METHODS, build_guidance
from reprior_bench.methods.priorguide import MixtureRatio, PriorGuide, PriorGuideSettings
from reprior.quadratic import Quadratic
from reprior.methods.rejuvenate import RejuvenateGuidance, RejuvenateSettings
from reprior.methods.transport import TransportGuidance
from reprior_bench.methods.wsm import WeightedScoreGuidance
from reprior.networks.build import rebuild
from reprior.networks.ratio import RatioMLP, RatioNetworkSettings
from reprior.posterior import Posterior, Scales, mark_of
from reprior.ratio_from_samples import RatioNetwork
from reprior.methods.learned.losses import ESTIMATORS
from reprior.sequential.surrogate import CarriedRatio
from reprior.simulations import Simulations
from reprior.standardizer import Standardizer

__all__ = ["load", "rebuild_adapted"]


def load(
    path: str | Path,
    prior: Any = None,
    target: Any = None,
    embedding: nn.Module | None = None,
    estimator: Any = None,
) -> Posterior | AdaptedPosterior:
    """Reads a posterior or an adapted posterior.

    Arguments:
        path: the file that `save` wrote.
        prior: the prior, where the file could not hold it (a prior that is the user's own object).
        target: the target prior, where the file could not hold it (a callable, or the user's own object).
        embedding: the user's own embedding module, where the base has one.
        estimator: for a base that came from sbi with a network that is not sbi's own: an sbi posterior or estimator of
            the same architecture; its weights do not matter.
    """
    file = io.read(path, ("posterior", "adapted"))
    try:
        posterior = _posterior(file.tensors, file.meta, prior, embedding, estimator)
        return posterior if file.kind == "posterior" else rebuild_adapted(posterior, file.tensors, file.meta, target)
    except (KeyError, TypeError, RuntimeError) as error:
        raise FileFormatError(f"{path} does not hold what its kind {file.kind!r} needs: {error}") from error


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with a prefix, without it."""
    return {k[len(prefix) + 1 :]: v for k, v in tensors.items() if k.startswith(prefix + ".")}


def _posterior(
    tensors: dict[str, Tensor],
    meta: dict[str, Any],
    prior: Any,
    embedding: nn.Module | None,
    estimator: Any = None,
) -> Posterior:
    base = rebuild(meta["base"], embedding, estimator)
    base.load_state_dict(part(tensors, "base"))
    scales = part(tensors, "scales")
    if meta["prior"] is not None and prior is not None:
        raise InputError("the file holds the prior that its base was trained under: load it without `prior`")
    kept = priors.from_dict(meta["prior"]) if prior is None else priors.on_cpu(priors.as_prior(prior))
    if kept is None:
        raise InputError(
            "the file could not hold the prior (it is no plain distribution): load(path, prior=...) needs it"
        )
    if priors.dim_of(kept) != base.dim:
        raise InputError(f"the prior has {priors.dim_of(kept)} parameters; the posterior has {base.dim}")
    names = tuple(meta["parameters"])
    stored = part(tensors, "simulations")
    simulations = Simulations(stored["theta"], stored["x"], kept, names) if stored else None
    compress_theta, compress_x = meta["compress"]
    scale = Standardizer(scales["theta.shift"], scales["theta.scale"], compress_theta)
    mark = meta.get("prior_mark")  # files of before have none
    if (
        prior is not None
        and mark
        and not torch.allclose(mark_of(kept, scale), torch.tensor(mark), rtol=1e-3, atol=1e-3)
    ):
        raise InputError("this is not the prior that the base in the file was trained under")
    return Posterior(
        base.requires_grad_(False).eval(),
        Scales(scale, Standardizer(scales["x.shift"], scales["x.scale"], compress_x)),
        kept,
        simulations,
        names,
        Sampler(**meta["sampler"]),
    )


def rebuild_adapted(
    posterior: Posterior, tensors: dict[str, Tensor], meta: dict[str, Any], target: Any = None
) -> AdaptedPosterior:
    """The adapted posterior of a base, from what `AdaptedPosterior.to_parts` gave."""
    change = replace(_change(posterior, part(tensors, "target"), meta, target), region=tensors.get("region"))
    guidance = _guidance(posterior, change, part(tensors, "guidance"), meta)
    warnings = tuple(meta["warnings"])
    kept = meta.get("adapted_sampler")  # files of before have the base's
    sampler = posterior.sampler if kept is None else Sampler(**kept)
    return AdaptedPosterior(posterior, change, guidance, meta["why"], warnings, sampler)


def _change(posterior: Posterior, network: dict[str, Tensor], meta: dict[str, Any], target: Any) -> PriorChange:
    scale = posterior.scales.theta
    outside = math.nan if meta["outside"] is None else float(meta["outside"])
    if meta["target_kind"] == "samples":
        model = RatioNetwork(scale)
        model.load_state_dict(network)
        ratio = model.requires_grad_(False)
        change = PriorChange(posterior.prior, None, ratio, True, "samples", scale, outside)
        return replace(change, reach=reach_of(posterior.prior), outer=outer_of(change))
    if meta["target_kind"] == "carried":
        config = meta["target_config"]
        ratio = CarriedRatio(
            scale, torch.tensor(config["carried"]), config["bumps"], config.get("coordinates", "theta")
        )
        ratio.load_state_dict(network)
        return PriorChange(posterior.prior, None, ratio, True, "carried", scale, outside)
    if meta["target"] is not None and target is not None:
        raise InputError(
            "the file holds its own target prior: for another one load it without, and adapt its `posterior`"
        )
    kept = priors.from_dict(meta["target"]) if target is None else target
    if kept is None:
        raise InputError(
            "the file could not hold the target prior (scipy's, a function, the user's own object, or a family of torch that files do not know): load(path, target=...) needs it"
        )
    change = make_change(posterior.prior, kept, scale, seed=0, accept_outside=True)
    mark, points = meta.get("target_mark"), meta.get("target_points")  # files of before have none
    here = change.mark(None if points is None else torch.tensor(points)) if mark else None
    if here is not None and not torch.allclose(here, torch.tensor(mark), rtol=1e-3, atol=1e-3, equal_nan=True):
        raise InputError("this is not the target prior that the file was adapted to: adapt its base to the other one")
    return change


def ratio_settings(data: dict[str, Any]) -> RatioSettings:
    """Settings of a learned guidance from plain data."""
    return RatioSettings(
        **{
            **data,
            "network": RatioNetworkSettings(**data["network"]),
            "training": Training(**data["training"]),
            "sampler": Sampler(**data["sampler"]),
        }
    )


def _guidance(posterior: Posterior, change: PriorChange, tensors: dict[str, Tensor], meta: dict[str, Any]) -> Guidance:
    method, config = meta["method"], meta["guidance"]
    if method in ESTIMATORS:
        settings = ratio_settings(config["settings"])
        model = RatioModel(config["dim"], config["x_features"], settings.network, config["anchored"])
        model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
        model.requires_grad_(False).eval()
        part = config["under"]
        under = part and Quadratic(tensors["under.L"], tensors["under.h"], part["c"], part["misfit"])
        return DensityRatioGuidance(method, model, posterior, change, settings, None, config["notes"], under)
    if method == "wsm":
        settings = ratio_settings(config["settings"])
        network = RatioMLP(config["dim"], config["x_features"], config["dim"], settings.network)
        network.load_state_dict(tensors)
        return WeightedScoreGuidance(network.requires_grad_(False).eval(), posterior, settings, None, config["notes"])
    if method == "priorguide":
        mixture = MixtureRatio(torch.zeros(config["components"]))
        mixture.load_state_dict(tensors)
        return PriorGuide(change, PriorGuideSettings(**config["settings"]), mixture.requires_grad_(False))
    if method not in METHODS:
        raise FileFormatError(f"the file holds a method {method!r}; known: {', '.join(METHODS)}")
    if method == "rejuvenate" and "learned" in config:
        learned = _guidance(posterior, change, tensors, config["learned"])
        return RejuvenateGuidance(change, posterior.base.noise, RejuvenateSettings(**config["settings"]), learned)
    if method == "transport" and config.get("fallback"):
        fallback = build_guidance(config["fallback"], posterior, change, None, seed=0)[0]
        return TransportGuidance(change, posterior.base.noise, fallback)
    kind = METHODS[method][0]
    settings = kind(**config["settings"]) if kind is not None and "settings" in config else None
    return build_guidance(method, posterior, change, settings, seed=0)[0]
