"""Files of posteriors and adapted posteriors: what `save` writes and `load` reads, without pickle.

A prior is written as plain data where possible. Otherwise the file has a fingerprint of it (its log-density at fixed
points); `load` then needs the prior as an argument and compares it with the fingerprint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reprior import io, priors
from reprior.adapted import AdaptedPosterior
from reprior.change import PriorChange
from reprior.diffusion.sampler import Sampler
from reprior.errors import FileFormatError, InputError
from reprior.methods import Problem, registered
from reprior.networks.build import rebuild
from reprior.posterior import Posterior, Scales, prior_fingerprint
from reprior.ratio_from_samples import RatioNetwork
from reprior.simulations import Simulations
from reprior.standardizer import Standardizer
from reprior.target import make_change

__all__ = ["adapted_parts", "load", "part", "rebuild_adapted"]

POINTS = 16  # draws of p, and of q, at which the fingerprint of a target prior has its values


def load(
    path: str | Path,
    prior: Any = None,
    target: Any = None,
    embedding: nn.Module | None = None,
    estimator: Any = None,
    coordinates: Any = None,
) -> Posterior | AdaptedPosterior:
    """Reads a posterior or an adapted posterior.

    Arguments:
        path: the file that `save` wrote.
        prior: the prior, where the file could not hold it (a prior that is the user's own object).
        target: the target prior, where the file could not hold it (a callable, or the user's own object).
        embedding: the user's own embedding module, where the base has one.
        estimator: for a base that came from sbi with a network that is not sbi's own: an sbi posterior or estimator of
            the same architecture; its weights do not matter.
        coordinates: the coordinates of an update that was saved, where they are the user's own.
    """
    file = io.read(path, ("posterior", "adapted"))
    try:
        posterior = _posterior(file.tensors, file.meta, prior, embedding, estimator)
        if file.kind == "posterior":
            return posterior
        return rebuild_adapted(posterior, file.tensors, file.meta, target, coordinates)
    except (KeyError, TypeError, RuntimeError) as error:
        raise FileFormatError(f"{path} does not hold what its kind {file.kind!r} needs: {error}") from error


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with a prefix, under their names without the prefix."""
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
    if prior is not None and not priors.same_fingerprint(prior_fingerprint(kept, scale), meta["prior_fingerprint"]):
        raise InputError("this is not the prior that the base in the file was trained under")
    return Posterior(
        base.requires_grad_(False).eval(),
        Scales(scale, Standardizer(scales["x.shift"], scales["x.scale"], compress_x)),
        kept,
        simulations,
        names,
        Sampler(**meta["sampler"]),
    )


def adapted_parts(adapted: AdaptedPosterior) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and plain data of a change of prior, without the base."""
    change, method = adapted.change, adapted.method
    tensors = {f"method.{k}": v for k, v in method.tensors().items()}
    network: Any = change.log_ratio if isinstance(change.log_ratio, torch.nn.Module) else None
    if network is not None:
        tensors |= {f"target.{k}": v for k, v in network.state_dict().items()}
    if change.region is not None:
        tensors["region"] = change.region
    meta = {
        "target": priors.to_dict(change.target) if change.target is not None else None,
        "target_kind": change.kind,
        "target_config": None if network is None else network.config(),
        "outside": None if math.isnan(change.outside) else change.outside,
        "seed": method.problem.seed,
        "method": method.name,
        "method_config": method.config(),
        "why": method.why,
        "notes": list(adapted.notes),
        "adapted_sampler": vars(adapted.sampler),
    }
    if network is None:
        points = torch.cat([priors.sample(change.prior, POINTS, seed=0), change.draw(POINTS, seed=0)])
        meta |= {"target_points": points.tolist(), "target_fingerprint": _fingerprint(change, points)}
    return {k: v.detach().cpu().contiguous() for k, v in tensors.items()}, meta


def rebuild_adapted(
    posterior: Posterior,
    tensors: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    target: Any = None,
    coordinates: Any = None,
) -> AdaptedPosterior:
    """The adapted posterior of a base, from what `adapted_parts` gave.

    Arguments:
        posterior: the base.
        tensors: the tensors.
        meta: the plain data.
        target: the target prior, where it could not be written.
        coordinates: the coordinates of a carried prior, where they are the user's own.
    """
    known = registered()
    if meta["method"] not in known:
        raise FileFormatError(
            f"the file holds a method {meta['method']!r}, which is not registered; import the package that registers it. "
            f"Registered: {', '.join(known)}"
        )
    change = _change(posterior, part(tensors, "target"), tensors.get("region"), meta, target, coordinates)
    config, own = meta["method_config"], part(tensors, "method")
    method = known[meta["method"]].rebuild(Problem(posterior, change, meta["seed"]), config, own).because(meta["why"])
    return AdaptedPosterior(posterior, change, method, Sampler(**meta["adapted_sampler"]), tuple(meta["notes"]))


def _change(
    posterior: Posterior,
    network: dict[str, Tensor],
    region: Tensor | None,
    meta: Mapping[str, Any],
    target: Any,
    coordinates: Any,
) -> PriorChange:
    scale, kind, config = posterior.scales.theta, meta["target_kind"], meta["target_config"]
    outside = math.nan if meta["outside"] is None else float(meta["outside"])
    if kind in ("samples", "carried"):
        from reprior.sequential.surrogate import CarriedRatio

        ratio = RatioNetwork(scale) if kind == "samples" else CarriedRatio.from_config(scale, config, coordinates)
        ratio.load_state_dict(network)
        return PriorChange(posterior.prior, scale, ratio.requires_grad_(False), None, kind, outside, region)
    if meta["target"] is not None and target is not None:
        raise InputError(
            "the file holds its own target prior: for another one load it without, and adapt its `posterior`"
        )
    kept = priors.from_dict(meta["target"]) if target is None else target
    if kept is None:
        raise InputError(
            "the file could not hold the target prior (scipy's, a function, the user's own object, or a family of torch "
            "that files do not know): load(path, target=...) needs it"
        )
    change = make_change(posterior.prior, kept, scale, seed=0, accept_outside=True)
    if not priors.same_fingerprint(
        _fingerprint(change, torch.tensor(meta["target_points"])), meta["target_fingerprint"]
    ):
        raise InputError("this is not the target prior that the file was adapted to: adapt its base to the other one")
    return replace(change, outside=outside)


@torch.no_grad()
def _fingerprint(change: PriorChange, points: Tensor) -> list[float]:
    """log r at points with shape (n, d), as a fingerprint of the target prior."""
    return priors.fingerprint(change.log_r, points)
