"""`update`: observation after observation, the last posterior is the next prior.

For observations that are independent given theta,

    p(theta | x_1..n+1) ~ p(x_{n+1} | theta) p(theta | x_1..n) ~ p(theta | x_{n+1}) r_n(theta),    r_n = p(theta | x_1..n) / p(theta)

so each step is a change of prior of the same base. Nuisance parameters have a new value in each observation: they do not enter
r_n, which is then the ratio of the carried parameters alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reprior.adapted import AdaptedPosterior
from reprior.errors import InputError
from reprior.fingerprint import fingerprint
from reprior.posterior import Posterior
from reprior.sampling import check_x
from reprior.seeds import check_seed
from reprior.sequential.accumulate import Accumulate
from reprior.sequential.learned import LearnedUpdate
from reprior.sequential.result import Update, Updates
from reprior.sequential.settings import AccumulateSettings, key_of, settings_of
from reprior.sequential.store import get_update, put_update
from reprior.store import Store

__all__ = ["update"]

FEWEST = 200  # samples from which a posterior can be carried: the points of a new term are taken near them


def update(
    posterior: Posterior,
    observations: Sequence[Tensor] | Tensor,
    nuisance: Sequence[str | int] = (),
    method: str = "accumulate",
    settings: Any = None,
    samples: int = 5_000,
    seed: int = 0,
    progress: bool = True,
    folder: str | Path | None = None,
) -> Updates:
    """The posterior after each of several independent observations of the same theta, with no new simulations.

    Arguments:
        posterior: the base posterior.
        observations: x_1, ..., x_N, each with shape (m,), or a tensor with shape (N, m).
        nuisance: parameters, by name or index, that have a new value in each observation and are not carried over.
        method: "accumulate" (the sum of the base's log-densities) or "ratio" (the paper's: learned from the last samples).
        settings: the method's settings (`AccumulateSettings`, `RatioUpdateSettings`); "paper" for the paper's settings of
            "ratio"; None for the defaults.
        samples: draws of each posterior.
        seed: the same seed gives the same updates on the same machine.
        progress: show a progress bar.
        folder: each finished observation is kept there, and a run that was stopped goes on after the last one; nothing is
            kept if not given.

    Returns: one `Update` for each observation.
    """
    if not isinstance(posterior, Posterior):
        hint = ": give its base, adapted.posterior" if isinstance(posterior, AdaptedPosterior) else ""
        raise InputError(f"update needs a reprior Posterior; got {type(posterior).__name__}{hint}")
    x = _rows(observations, posterior)
    indices = _indices(nuisance, posterior)
    chosen, seed = settings_of(method, settings), check_seed(seed)
    if samples < FEWEST:
        raise InputError(f"at least {FEWEST} samples are needed to carry a posterior; got {samples}")
    coordinates = chosen.coordinates if isinstance(chosen, AccumulateSettings) else None
    run = _run(posterior, indices, chosen)
    store = None if folder is None else Store(folder, "update")
    key: dict[str, Any] = {"method": method, **key_of(chosen), "samples": samples, "nuisance": indices, "seed": seed}
    if store is not None:
        key["base"] = fingerprint(*posterior.to_parts(simulations=True))
        store.warn_if_other({**key, "observations": x[:1]})
    done: list[Update] = []
    for n in _counted(len(x), progress):
        now = {**key, "observations": x[:n]}
        kept = None if store is None else get_update(store, now, posterior, coordinates)
        if kept is not None:
            done.append(kept[0])
            run = _run(posterior, indices, chosen, kept[1])
            continue
        done.append(_step(posterior, run, n, x[n - 1], samples, seed + 1_000 * n))
        if store is not None:
            put_update(store, now, done[-1], run.state())
    return Updates(done, posterior.parameters)


def _run(
    posterior: Posterior, nuisance: tuple[int, ...], settings: Any, state: dict[str, Tensor] | None = None
) -> Accumulate | LearnedUpdate:
    make: Any = Accumulate if isinstance(settings, AccumulateSettings) else LearnedUpdate
    return make(posterior, nuisance, settings, state)


def _step(posterior: Posterior, run: Accumulate | LearnedUpdate, n: int, x: Tensor, samples: int, seed: int) -> Update:
    adapted: Posterior | AdaptedPosterior = posterior if n == 1 else run.adapt(x, seed)
    theta, info = adapted.sample((samples,), x, seed=seed, return_info=True)
    theta, figures = run.finish(x, theta, seed)
    info = replace(info, figures={**info.figures, **{name: (value,) for name, value in figures.items()}})
    return Update(n, x, adapted, theta, info)


def _counted(total: int, progress: bool) -> Any:
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
