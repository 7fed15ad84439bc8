"""reprior changes the prior of a trained simulation-based posterior, with no new simulations.

    posterior = reprior.train(theta, x, prior=p)
    adapted = reprior.adapt(posterior, q)
    samples, info = adapted.sample((5000,), x=x_obs, return_info=True)

Names are imported when first used, so that ``import reprior`` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from reprior._version import __version__

if TYPE_CHECKING:
    from reprior import methods, priors
    from reprior.adapted import AdaptedPosterior, adapt
    from reprior.diagnostics import Report, diagnose
    from reprior.diffusion.sampler import PAPER_SAMPLER, Sampler
    from reprior.networks.fit import Training
    from reprior.errors import FileFormatError, InputError, RefusedError, RepriorError, SupportError
    from reprior.info import Info
    from reprior.integrations.sbi import from_sbi
    from reprior.loading import load
    from reprior.networks.embedding import Embedding
    from reprior.networks.mlp import MLPSettings
    from reprior.networks.simformer import SimformerSettings
    from reprior.posterior import Posterior
    from reprior.sequential.result import Update, Updates
    from reprior.sequential.update import update
    from reprior.simulator import simulate
    from reprior.simulations import Simulations
    from reprior.trainer import train

_HOMES = {
    "AdaptedPosterior": "adapted",
    "Embedding": "networks.embedding",
    "FileFormatError": "errors",
    "Info": "info",
    "InputError": "errors",
    "MLPSettings": "networks.mlp",
    "PAPER_SAMPLER": "diffusion.sampler",
    "Posterior": "posterior",
    "Report": "diagnostics",
    "RefusedError": "errors",
    "RepriorError": "errors",
    "Sampler": "diffusion.sampler",
    "SimformerSettings": "networks.simformer",
    "Simulations": "simulations",
    "SupportError": "errors",
    "Training": "networks.fit",
    "Update": "sequential.result",
    "Updates": "sequential.result",
    "adapt": "adapted",
    "diagnose": "diagnostics",
    "from_sbi": "integrations.sbi",
    "load": "loading",
    "simulate": "simulator",
    "train": "trainer",
    "update": "sequential.update",
}
_MODULES = ("methods", "priors")

__all__ = [
    "PAPER_SAMPLER",
    "AdaptedPosterior",
    "Embedding",
    "FileFormatError",
    "Info",
    "InputError",
    "MLPSettings",
    "Posterior",
    "RefusedError",
    "Report",
    "RepriorError",
    "Sampler",
    "SimformerSettings",
    "Simulations",
    "SupportError",
    "Training",
    "Update",
    "Updates",
    "__version__",
    "adapt",
    "diagnose",
    "from_sbi",
    "load",
    "methods",
    "priors",
    "simulate",
    "train",
    "update",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"reprior.{_HOMES[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"reprior.{name}")
    else:
        raise AttributeError(f"module 'reprior' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
