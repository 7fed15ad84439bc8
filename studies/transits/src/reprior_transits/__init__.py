"""Transit light curves: from TESS photometry to the posterior after each transit, a study with reprior.

    import reprior
    import reprior_transits as transits

    wasp39 = transits.target("wasp-39")
    photometry = wasp39.process(wasp39.download())         # or wasp39.read("file.csv")
    x = photometry.windows.x                               # (n, 128), NaN where a point is missing

    prior = transits.TransitPrior()
    simulator = transits.TransitSimulator(half_width=wasp39.windows.half_width)
    theta = reprior.priors.sample(prior, 10_000, seed=0)
    x = simulator.simulate(theta, seed=1)

The whole study of a target is `study.run_study`, and on the command line `reprior-transits run`. pytransit and lightkurve take
seconds to import, so only the functions that need them import them.
"""

from reprior_transits.coordinates import TRANSIT
from reprior_transits.files import Columns, download, from_lightkurve, read, read_csv, read_fits
from reprior_transits.look import Look
from reprior_transits.period import Ephemeris, Search, find_period, fit_ephemeris
from reprior_transits.photometry import LightCurve, clip, detrend, from_arrays, normalise, scatter, stitch
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
    "TRANSIT",
    "Columns",
    "Ephemeris",
    "LightCurve",
    "Look",
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
