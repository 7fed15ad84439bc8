"""The folder of a run: one file for each finished observation.

A file holds the update and the state the run goes on from, and a key: everything that the result depends on (base,
method, settings, seed, observation). A file with another key is never used.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from reprior import io, priors
from reprior.adapted import AdaptedPosterior
from reprior.errors import FileFormatError, InputError
from reprior.info import Info
from reprior.posterior import Posterior
from reprior.sequential.result import Update

__all__ = ["fingerprint", "read_update", "write_update"]

KIND = "update"
PROBE = 8  # draws that tell one prior from another


def fingerprint(posterior: Posterior) -> str:
    """A short digest of a posterior: its base, scales, sampler, prior and stored simulations."""
    tensors, meta = posterior.to_parts(simulations=True)
    sha = hashlib.sha256(repr([meta["base"], meta["sampler"], meta["prior"]]).encode())
    if meta["prior"] is None:  # the user's own object: by some of its draws, to the digits that machines agree on
        theta = priors.sample(posterior.prior, PROBE, seed=0)
        sha.update(" ".join(f"{v:.3e}" for v in [*theta.flatten(), *priors.log_prob(posterior.prior, theta)]).encode())
    for name in sorted(tensors):
        sha.update(name.encode())
        sha.update(tensors[name].numpy().tobytes())
    return sha.hexdigest()[:16]


def path_of(folder: Path, n: int) -> Path:
    """The file of the n-th observation."""
    return folder / f"update-{n:04d}{io.SUFFIX}"


def write_update(folder: Path, update: Update, state: dict[str, Tensor], key: dict[str, Any]) -> None:
    """Writes a finished observation, whole or not at all."""
    tensors = {"samples": update.samples, "x": update.x} | {f"state.{k}": v for k, v in state.items()}
    meta: dict[str, Any] = {"n": update.n, "key": key, "info": asdict(update.info), "verdict": update.verdict}
    if isinstance(update.adapted, AdaptedPosterior):
        more, plain = update.adapted.to_parts()
        tensors |= {f"adapted.{k}": v for k, v in more.items()}
        meta["adapted"] = plain
    io.write(path_of(folder, update.n), KIND, tensors, meta)


def read_update(
    folder: Path, n: int, posterior: Posterior, key: dict[str, Any]
) -> tuple[Update, dict[str, Tensor]] | None:
    """The n-th update and the state after it; None if it is not finished."""
    from reprior.loading import part, rebuild_adapted

    path = path_of(folder, n)
    if not path.exists():
        return None
    file = io.read(path, KIND)
    for name, value in key.items():
        if file.meta["key"].get(name) != value:
            raise InputError(
                f"{path} was made with another {name}; use an empty folder, or the same base, observations and settings"
            )
    try:
        info = Info(**{**file.meta["info"], "warnings": tuple(file.meta["info"]["warnings"])})
        adapted: Posterior | AdaptedPosterior = posterior
        if "adapted" in file.meta:
            adapted = rebuild_adapted(posterior, part(file.tensors, "adapted"), file.meta["adapted"])
        update = Update(n, file.tensors["x"], adapted, file.tensors["samples"], info, file.meta["verdict"])
    except (KeyError, TypeError, RuntimeError) as error:
        raise FileFormatError(f"{path} does not hold what an update needs: {error}") from error
    return update, part(file.tensors, "state")
