"""`update`: observation after observation, the last posterior is the next prior.

For observations that are independent given theta,

    p(theta | x_1..n+1) ~ p(x_{n+1} | theta) p(theta | x_1..n) ~ p(theta | x_{n+1}) r_n(theta),    r_n = p(theta | x_1..n) / p(theta)

so each step is a change of prior of the same base. Nuisance parameters have a new value in each observation: they are left out of
r_n, which is then the ratio of the carried parameters alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reprior.adapted import AdaptedPosterior
from reprior.errors import InputError
from reprior.posterior import Posterior, check_x
from reprior.sequential.accumulate import Accumulate
from reprior.sequential.learned import Learned
from reprior.sequential.result import Update, Updates, verdict_of
from reprior.sequential.settings import settings_of
from reprior.sequential.store import fingerprint, read_update, write_update

__all__ = ["update"]


def update(
    posterior: Posterior,
    observations: Sequence[Tensor] | Tensor,
    nuisance: Sequence[str | int] = (),
    method: str = "accumulate",
    settings: Any = "best",
    samples: int = 5_000,
    folder: str | Path | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Updates:
    """The posterior after each of several independent observations of the same theta, with no new simulations.

    Arguments:
        posterior: the base posterior.
        observations: x_1, ..., x_N, each with shape (m,), or a tensor with shape (N, m).
        nuisance: parameters, by name or index, that have a new value in each observation and are not carried over.
        method: "accumulate" (the sum of the base's log-densities), "ratio" (the paper's: learned from the last samples) or
            "priorguide_mc" (the competitor).
        settings: "best"; "paper" for the paper's settings of "ratio" and "priorguide_mc"; or the method's settings
            (`reprior.sequential.settings`).
        samples: draws of each posterior.
        folder: each finished observation is written there, and a run that was stopped goes on after the last one.
        seed: the same seed gives the same updates on the same machine.
        progress: show a progress bar.

    Returns: one `Update` for each observation.
    """
    if not isinstance(posterior, Posterior):
        hint = ": give its base, adapted.posterior" if isinstance(posterior, AdaptedPosterior) else ""
        raise InputError(f"update needs a reprior Posterior; got {type(posterior).__name__}{hint}")
    x = _rows(observations, posterior)
    indices = _indices(nuisance, posterior)
    chosen = settings_of(method, settings)
    if samples < 200:
        raise InputError(f"at least 200 samples are needed to carry a posterior; got {samples}")
    make = Accumulate if method == "accumulate" else Learned
    run = make(posterior, indices, chosen)
    plain = json.loads(json.dumps(asdict(chosen)))
    key = {"method": method, "settings": plain, "samples": samples, "nuisance": list(indices), "seed": seed}
    key["base"] = fingerprint(posterior) if folder is not None else ""
    done: list[Update] = []
    for n in _counted(len(x), progress):
        # JSON's NaN is not equal to itself: a missing entry is None.
        now = {**key, "observation": [None if math.isnan(v) else v for v in x[n - 1].tolist()]}
        kept = read_update(Path(folder), n, posterior, now) if folder is not None else None
        if kept is not None:
            done.append(kept[0])
            run = make(posterior, indices, chosen, kept[1])
            continue
        done.append(_step(posterior, run, n, x[n - 1], samples, seed + 1_000 * n))
        if folder is not None:
            write_update(Path(folder), done[-1], run.state(), now)
    return Updates(done, posterior.parameters)


def _step(posterior: Posterior, run: Accumulate | Learned, n: int, x: Tensor, samples: int, seed: int) -> Update:
    adapted: Posterior | AdaptedPosterior = posterior if n == 1 else run.adapt(x, seed)
    theta, info = adapted.sample((samples,), x, seed=seed, return_info=True)
    theta, notes = run.finish(x, theta, seed)
    info = replace(info, details={**info.details, **notes})
    return Update(n, x, adapted, theta, info, verdict_of(info, run.pool))


def _counted(total: int, progress: bool):
    from tqdm.auto import tqdm

    return tqdm(range(1, total + 1), desc="observations", disable=not progress)


def _rows(observations: Sequence[Tensor] | Tensor, posterior: Posterior) -> Tensor:
    if not isinstance(observations, Tensor):
        rows = [torch.as_tensor(x, dtype=torch.float32) for x in observations]
        if not rows:
            raise InputError("at least one observation is needed; got none")
        shapes = {tuple(x.shape) for x in rows}
        if shapes != {(posterior.x_dim,)}:
            raise InputError(f"each observation needs shape ({posterior.x_dim},); got {sorted(shapes)}")
        observations = torch.stack(rows)
    if observations.ndim != 2 or len(observations) == 0:
        raise InputError(f"observations need shape (N, {posterior.x_dim}); got {tuple(observations.shape)}")
    return check_x(observations, posterior.x_dim)


def _indices(nuisance: Sequence[str | int], posterior: Posterior) -> tuple[int, ...]:
    names = posterior.parameters
    if isinstance(nuisance, str):
        raise InputError(f"nuisance is a list of names or indices; got the text {nuisance!r}: write [{nuisance!r}]")
    out = set()
    for one in nuisance:
        if isinstance(one, str) and one in names:
            out.add(names.index(one))
        elif isinstance(one, int) and 0 <= one < posterior.dim:
            out.add(one)
        else:
            raise InputError(f"nuisance parameter {one!r} is unknown; allowed: {', '.join(names)}, or their indices")
    if len(out) == posterior.dim:
        raise InputError("all parameters are nuisance parameters: nothing is carried from one observation to the next")
    return tuple(sorted(out))
