"""Transit light curves: from TESS photometry to observations x, and the simulator that a posterior is trained
on.

    import reprior_transits as lightcurve

    wasp39 = lightcurve.target("wasp-39")
    photometry = wasp39.process(wasp39.download())         # or wasp39.read("file.csv")
    x = photometry.windows.x                               # (n, 128), NaN where a point is missing

    prior = lightcurve.TransitPrior()
    simulator = lightcurve.TransitSimulator(half_width=wasp39.windows.half_width)
    theta = reprior.priors.sample(prior, 10_000, seed=0)
    x = simulator.simulate(theta, seed=1)

Install with ``pip install 'reprior[lightcurve]'``. Names are imported when they are first used; lightkurve,
astropy and pytransit (GPL) only by the functions that need them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reprior_transits.files import Columns, download, from_lightkurve, read, read_csv, read_fits
    from reprior_transits.period import Ephemeris, Search, find_period, fit_ephemeris
    from reprior_transits.photometry import (
        LightCurve,
        clip,
        detrend,
        from_arrays,
        normalise,
        scatter,
        stitch,
    )
    from reprior_transits.targets import TARGETS, Reference, Target, target
    from reprior_transits.transit import TransitSimulator, random_gaps
    from reprior_transits.transit_prior import (
        PARAMETERS,
        TransitPrior,
        fold_inclination,
        gaussian_prior,
        impact_parameter,
        physical,
    )
    from reprior_transits.windows import Photometry, Windows, WindowSettings, cut_windows, process

__all__ = [
    "PARAMETERS",
    "TARGETS",
    "Columns",
    "Ephemeris",
    "LightCurve",
    "Photometry",
    "Reference",
    "Search",
    "Target",
    "TransitPrior",
    "TransitSimulator",
    "WindowSettings",
    "Windows",
    "clip",
    "cut_windows",
    "detrend",
    "download",
    "find_period",
    "fit_ephemeris",
    "fold_inclination",
    "from_arrays",
    "from_lightkurve",
    "gaussian_prior",
    "impact_parameter",
    "normalise",
    "physical",
    "process",
    "random_gaps",
    "read",
    "read_csv",
    "read_fits",
    "scatter",
    "stitch",
    "target",
]

_MODULES = ("photometry", "files", "period", "windows", "targets", "transit_prior", "transit")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            found = import_module(f"{__name__}.{module}")
            if name in found.__all__:
                return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
