"""Finished observations in the store of a run (`reprior.store`).

An update is kept with the state that the run goes on from. Its key holds everything that the result depends on: base,
method, settings, seed and all observations up to this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from reprior.adapted import AdaptedPosterior
from reprior.distance import distance_warning
from reprior.info import Info
from reprior.posterior import Posterior
from reprior.sequential.coordinates import Coordinates
from reprior.sequential.result import Update
from reprior.store import Store

__all__ = ["get_update", "put_update"]

INFO = ("method", "n", "observations", "seconds", "rejected", "why", "told", "figures", "notes")


def put_update(store: Store, key: Mapping[str, Any], update: Update, state: Mapping[str, Tensor]) -> None:
    """Writes a finished observation, whole or not at all.

    Arguments:
        store: the store.
        key: all that the update depends on.
        update: the update.
        state: the tensors that the run goes on from.
    """
    from reprior.loading import adapted_parts  # which imports this package

    info = {name: getattr(update.info, name) for name in INFO}
    meta: dict[str, Any] = {"n": update.n, "info": info}
    tensors = {"samples": update.samples, "x": update.x} | {f"state.{k}": v for k, v in state.items()}
    if update.info.log_w is not None:
        tensors["log_w"] = update.info.log_w
    if isinstance(update.adapted, AdaptedPosterior):
        more, meta["adapted"] = adapted_parts(update.adapted)
        tensors |= {f"adapted.{k}": v for k, v in more.items()}
    store.put(key, tensors, meta)


def get_update(
    store: Store, key: Mapping[str, Any], posterior: Posterior, coordinates: Coordinates | None
) -> tuple[Update, dict[str, Tensor]] | None:
    """An update and the state after it; None if it is not finished.

    Arguments:
        store: the store.
        key: all that the update depends on.
        posterior: the base.
        coordinates: the coordinates of the run.
    """
    from reprior.loading import part, rebuild_adapted

    file = store.get(key)
    if file is None:
        return None
    tensors, meta, adapted = file.tensors, file.meta, posterior
    if "adapted" in meta:
        adapted = rebuild_adapted(posterior, part(tensors, "adapted"), meta["adapted"], coordinates=coordinates)
    x, log_w, kept = tensors["x"], tensors.get("log_w"), meta["info"]
    told: dict[str, Any] = {name: tuple(kept[name]) if isinstance(kept[name], list) else kept[name] for name in INFO}
    told["figures"] = {name: tuple(values) for name, values in kept["figures"].items()}
    distant = partial(distance_warning, posterior.simulations, posterior.scales.x, x.unsqueeze(0))
    info = Info(**told, _log_w=lambda: log_w, _distant=distant)
    return Update(meta["n"], x, adapted, tensors["samples"], info), part(tensors, "state")
