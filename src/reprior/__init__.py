"""reprior changes the prior of a trained simulation-based posterior, with no new simulations.

    posterior = reprior.train(theta, x, prior=p)
    adapted = reprior.adapt(posterior, q)
    samples, info = adapted.sample((5000,), x=x_obs, return_info=True)
    report = reprior.diagnose(adapted, x=x_obs)

Names are imported when first used, so that ``import reprior`` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from reprior._version import __version__

if TYPE_CHECKING:
    from reprior import methods, priors
    from reprior.adapted import AdaptedPosterior, adapt
    from reprior.diagnostics import DiagnoseSettings, Report, diagnose
    from reprior.diffusion.sampler import PAPER_SAMPLER, Sampler
    from reprior.errors import FileFormatError, InputError, RefusedError, RepriorError, SupportError
    from reprior.info import Info
    from reprior.integrations.sbi import from_sbi
    from reprior.loading import load
    from reprior.methods import RatioSettings, RejuvenateSettings, SIRSettings, SMCSettings, TransportSettings
    from reprior.networks.embedding import Embedding
    from reprior.networks.fit import FitResult, Training
    from reprior.networks.masks import MaskMix
    from reprior.networks.mlp import MLPSettings
    from reprior.networks.ratio import RatioNetworkSettings
    from reprior.networks.simformer_settings import SimformerSettings
    from reprior.posterior import Posterior
    from reprior.sequential import AccumulateSettings, Coordinates, RatioUpdateSettings, Update, Updates, update
    from reprior.simulations import Simulations
    from reprior.simulator import SimulatorError, simulate
    from reprior.trainer import train

# module: the public names that live there
_HOMES = {
    "adapted": ("AdaptedPosterior", "adapt"),
    "diagnostics": ("DiagnoseSettings", "Report", "diagnose"),
    "diffusion.sampler": ("PAPER_SAMPLER", "Sampler"),
    "errors": ("FileFormatError", "InputError", "RefusedError", "RepriorError", "SupportError"),
    "info": ("Info",),
    "integrations.sbi": ("from_sbi",),
    "loading": ("load",),
    "methods": ("RatioSettings", "RejuvenateSettings", "SIRSettings", "SMCSettings", "TransportSettings"),
    "networks.embedding": ("Embedding",),
    "networks.fit": ("FitResult", "Training"),
    "networks.masks": ("MaskMix",),
    "networks.mlp": ("MLPSettings",),
    "networks.ratio": ("RatioNetworkSettings",),
    "networks.simformer_settings": ("SimformerSettings",),
    "posterior": ("Posterior",),
    "sequential": ("AccumulateSettings", "Coordinates", "RatioUpdateSettings", "Update", "Updates", "update"),
    "simulations": ("Simulations",),
    "simulator": ("SimulatorError", "simulate"),
    "trainer": ("train",),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "PAPER_SAMPLER",
    "AccumulateSettings",
    "AdaptedPosterior",
    "Coordinates",
    "DiagnoseSettings",
    "Embedding",
    "FileFormatError",
    "FitResult",
    "Info",
    "InputError",
    "MLPSettings",
    "MaskMix",
    "Posterior",
    "RatioNetworkSettings",
    "RatioSettings",
    "RatioUpdateSettings",
    "RefusedError",
    "RejuvenateSettings",
    "Report",
    "RepriorError",
    "SIRSettings",
    "SMCSettings",
    "Sampler",
    "SimformerSettings",
    "Simulations",
    "SimulatorError",
    "SupportError",
    "Training",
    "TransportSettings",
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
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(f"reprior.{_MODULE_OF[name]}"), name)
    elif name in ("methods", "priors"):
        value = importlib.import_module(f"reprior.{name}")
    else:
        raise AttributeError(f"module 'reprior' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
