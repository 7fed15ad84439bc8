"""The three targets of the paper: what is known of them, and the settings that their data need.

Reference values are published ones, and say where a number was derived rather than quoted. They are for
comparison only: nothing in the processing of the data uses them. The paper has 5 windows of WASP-39 and 7 of
each of the others; the files named in the notes give 5 (one without its egress), 8 (WASP-126) and 14 (GJ
436).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from reprior.errors import InputError
from reprior_transits.files import Columns, download, read
from reprior_transits.look import Look
from reprior_transits.period import Search
from reprior_transits.photometry import DETREND_WINDOW, LightCurve
from reprior_transits.windows import Photometry, WindowSettings, process

__all__ = ["TARGETS", "Reference", "Target", "target"]

UNKNOWN = float("nan")


@dataclass(frozen=True)
class Reference:
    """Published values of the transit parameters; an error is NaN where none is quoted.

    Arguments:
        k: planet-to-star radius ratio.
        a: scaled semi-major axis a/Rs.
        inc: inclination in degrees.
        period: P in days.
        source: where the values come from.
        note: what a reader should know of them.
    """

    k: float
    a: float
    inc: float
    period: float
    source: str
    k_error: float = UNKNOWN
    a_error: float = UNKNOWN
    inc_error: float = UNKNOWN
    period_error: float = UNKNOWN
    note: str = ""

    @property
    def theta(self) -> np.ndarray:
        """(k, a, inc, P), the parameters of interest, with shape (4,)."""
        return np.array([self.k, self.a, self.inc, self.period])

    @property
    def errors(self) -> np.ndarray:
        """The standard errors of theta, NaN where none is quoted, with shape (4,)."""
        return np.array([self.k_error, self.a_error, self.inc_error, self.period_error])


@dataclass(frozen=True)
class Target:
    """A target: how to get its light curve and cut its windows.

    Arguments:
        name: as the archive knows it; used by `download`.
        planet: the planet's name.
        reference: published values.
        fit: a conventional fit of the data at hand: Markov chain Monte Carlo with a straight baseline per transit, the
            period fixed; errors are means of the two sides.
        windows: settings of the windows; the half-width is a property of the data.
        look: how its windows look, where a base for all windows of the prior is too blurred; none if not given.
        search: settings of the period search.
        detrend_window: width of the local baseline in days.
        columns: of a CSV file of this target.
        note: what a reader should know of the data.
    """

    name: str
    planet: str
    reference: Reference
    fit: Reference
    windows: WindowSettings = field(default_factory=WindowSettings)
    look: Look | None = None
    search: Search = field(default_factory=Search)
    detrend_window: float = DETREND_WINDOW
    columns: Columns = field(default_factory=Columns)
    note: str = ""

    def read(self, path: str | Path) -> LightCurve:
        """Reads a CSV or FITS file of this target."""
        return read(path, self.columns, self.name)

    def download(self) -> LightCurve:
        """Downloads every sector of this target; see `files.download`."""
        return download(self.name)

    def process(self, curve: LightCurve) -> Photometry:
        """The whole chain with the settings of this target; see `windows.process`."""
        return process(curve, self.windows, self.search, self.detrend_window)


TARGETS: dict[str, Target] = {
    "wasp-39": Target(
        name="WASP-39",
        planet="WASP-39 b",
        reference=Reference(
            k=0.1453,
            a=11.68,
            inc=87.83,
            period=4.055259,
            k_error=0.0007,
            inc_error=0.25,
            period_error=8e-6,
            source="Faedi et al. 2011, A&A 531, A40",
            note="a derived from 0.0486 au and 0.895 Rsun; k is the square root of the depth 0.0211",
        ),
        fit=Reference(
            k=0.1401,
            a=12.36,
            inc=89.06,
            period=4.05527892,
            k_error=0.0017,
            a_error=0.34,
            inc_error=0.67,
            source="emcee fit of TESS sector 51, 5 transits",
        ),
        note=(
            "TESS sector 51, corrected and normalised by its publisher (christinahedges/wasp-39). "
            "A conventional fit of these data gives k = 0.140 +- 0.002, not the published 0.145. "
            "The first transit lacks its egress."
        ),
    ),
    "wasp-126": Target(
        name="WASP-126",
        planet="WASP-126 b",
        reference=Reference(
            k=0.0777,
            a=7.60,
            inc=87.9,
            period=3.2888,
            inc_error=1.5,
            period_error=1e-5,
            source="Maxted et al. 2016, A&A 591, A55",
            note="k derived from 0.96 RJ and 1.27 Rsun, a from 0.0449 au and 1.27 Rsun",
        ),
        fit=Reference(
            k=0.0781,
            a=7.86,
            inc=89.0,
            period=3.2888,
            k_error=0.0006,
            a_error=0.13,
            inc_error=0.75,
            source="emcee fit of TESS sector 1, 8 transits",
        ),
        note="TESS sector 1, SPOC.",
    ),
    "gj-436": Target(
        name="GJ 436",
        planet="GJ 436 b",
        reference=Reference(
            k=0.08258,
            a=13.45,
            inc=86.37,
            period=2.64389803,
            k_error=0.00017,
            a_error=0.13,
            inc_error=0.05,
            period_error=2.6e-7,
            source="Lanotte et al. 2014, A&A 572, A73",
            note=(
                "the orbit is eccentric (e = 0.1616, w = 327.2 deg, a/Rs = 14.54, inc = 86.858); a and inc "
                "here are what a circular model sees: a (1 + e sin w) / sqrt(1 - e^2), same impact parameter"
            ),
        ),
        fit=Reference(
            k=0.0829,
            a=13.5,
            inc=86.38,
            period=2.64389803,
            k_error=0.0006,
            a_error=0.3,
            inc_error=0.12,
            source="emcee fit of TESS sectors 22 and 49, 14 transits",
            note="circular orbit",
        ),
        windows=WindowSettings(half_width=0.1),
        look=Look(depth=(0.004, 0.01), duration=(0.02, 0.045), noise=(0.0003, 0.0009), middle=(-0.01, 0.01)),
        note="TESS sectors 22 and 49, SPOC; the data at hand hold 0.1 d around each transit.",
    ),
}


def target(name: str) -> Target:
    """A built-in target: "wasp-39", "wasp-126" or "gj-436"; "WASP-39 b" and "GJ 436" are understood too."""
    key = "-".join(name.lower().replace("-", " ").split())
    key = key.removesuffix("-b") if key not in TARGETS else key
    if key not in TARGETS:
        raise InputError(f"unknown target {name!r}; built in: {', '.join(TARGETS)}. Others: build a Target")
    return TARGETS[key]
