"""The transit simulator: a planet crosses a limb-darkened star.

With phase phi = 2 pi (t - t0) / P the centres are z = a sqrt(sin^2 phi + cos^2 inc cos^2 phi) stellar radii
apart (a circular orbit), the star's disc has the brightness I(mu) = 1 - u1 (1 - mu) - u2 (1 - mu)^2, and the
flux is

    f(t) = 1 - (brightness hidden by a circle of radius k at distance z) / (brightness of the disc),
    x_j  = mean of f over bin j + sigma eps_j,        eps_j ~ N(0, 1).

pytransit evaluates f (Mandel and Agol 2002) for many theta at once. The mean over a bin of width w is the
mean at `supersample` points of it. On draws from the prior with 11-minute bins, five points are right within
2e-5 for nine draws of ten and 6e-5 at worst, where one point is off by up to 2e-3, twice the noise.
pytransit follows the orbit by a Taylor series: its error stays below 1e-5 for a > 3, and grows to 2e-3 as a
-> 1 (0.4 % of the prior's draws have a < 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reprior.errors import InputError
from reprior_transits.photometry import Array
from reprior_transits.transit_prior import PARAMETERS, physical
from reprior_transits.windows import WindowSettings, grid

__all__ = ["TransitSimulator", "random_gaps", "transit_model"]

ROWS = 50_000  # light curves at once, which bounds the memory
UNPHYSICAL = ("raise", "nan")


@dataclass(frozen=True)
class TransitSimulator:
    """Simulates windows x from theta = (k, a, inc, P, t0, u1, u2, sigma).

    Inclinations above 90 degrees give the light curve of their mirror image; other values outside the limits
    of `physical` have no light curve. Grazing and non-transiting orbits are simulated as they are: shallow or
    flat.

    Arguments:
        half_width: h of the window in days, as in `WindowSettings`.
        points: the number of bins.
        supersample: the number of points averaged in a bin; 1 for points that are short exposures.
        unphysical: "raise" an InputError for theta outside the limits, or give rows of "nan".
    """

    half_width: float = 0.5
    points: int = 128
    supersample: int = 5
    unphysical: str = "raise"

    def __post_init__(self) -> None:
        WindowSettings(half_width=self.half_width, points=self.points)
        if self.supersample < 1:
            raise InputError(f"supersample must be at least 1; got {self.supersample}")
        if self.unphysical not in UNPHYSICAL:
            raise InputError(f"unphysical must be one of {', '.join(UNPHYSICAL)}; got {self.unphysical!r}")

    @property
    def time(self) -> Array:
        """The bin centres in days from the centre of the window, with shape (points,)."""
        return grid(WindowSettings(half_width=self.half_width, points=self.points))

    def flux(self, theta: Tensor) -> Tensor:
        """The noise-free light curves, float64, with shape (n, points).

        Arguments:
            theta: parameters, with shape (n, 8).
        """
        if theta.ndim != 2 or theta.shape[1] != len(PARAMETERS):
            raise InputError(f"theta must have shape (n, 8); got {tuple(theta.shape)}")
        good = physical(theta)
        if self.unphysical == "raise" and not bool(good.all()):
            row = int((~good).nonzero()[0])
            values = ", ".join(f"{name}={float(v):.4g}" for name, v in zip(PARAMETERS, theta[row], strict=True))
            raise InputError(
                f"{int((~good).sum())} of {len(theta)} parameter sets are unphysical, first row {row}: "
                f"{values}. The limits are 0 < k < 1, a > 1, 0 < inc < 180, P > 0, sigma > 0, u1 >= 0, "
                'u1 + 2 u2 >= 0, u1 + u2 <= 1; unphysical="nan" gives NaN rows'
            )
        out = torch.full((len(theta), self.points), torch.nan, dtype=torch.float64)
        values = theta[good].detach().cpu().double().numpy()
        parts = [self._evaluate(values[i : i + ROWS]) for i in range(0, len(values), ROWS)]
        if parts:
            out[good.cpu()] = torch.from_numpy(np.concatenate(parts))
        return out.to(theta.device)

    def simulate(self, theta: Tensor, seed: int) -> Tensor:
        """Light curves with noise, float32, with shape (n, points): x = flux(theta) + sigma eps.

        Arguments:
            theta: parameters, with shape (n, 8).
            seed: of the noise; the global random state is left alone.
        """
        flux = self.flux(theta)
        noise = torch.randn(flux.shape, generator=torch.Generator().manual_seed(seed))
        return (flux + theta[:, -1:].double() * noise.to(theta.device)).float()

    def _evaluate(self, theta: Array) -> Array:
        model = _model(self.half_width, self.points, self.supersample)
        # Contiguous arrays whatever n is: numba compiles once, not once per memory layout (10 s each).
        k, a, inc, period, t0, *_ = np.ascontiguousarray(theta.T)
        ldc = np.ascontiguousarray(theta[:, 5:7])
        flux = model.evaluate(k, ldc, t0, period, a, np.deg2rad(inc))
        return np.reshape(flux, (len(theta), self.points))


@lru_cache(maxsize=8)
def _model(half_width: float, points: int, supersample: int) -> Any:
    settings = WindowSettings(half_width=half_width, points=points)
    return transit_model(grid(settings), settings.bin_width, supersample)


def transit_model(times: Array, exposure: float, supersample: int) -> Any:
    """pytransit's model of a limb-darkened transit (Mandel and Agol 2002) at some times.

    Arguments:
        times: in days, with shape (n,).
        exposure: of a point, in days.
        supersample: the number of points averaged in an exposure.
    """
    try:
        pytransit = import_module("pytransit")
    except FileNotFoundError:
        # arviz, which pytransit imports, moves a file into place once a day: of two processes that do so at once one
        # finds it gone, and has only to import again.
        pytransit = import_module("pytransit")
    model = pytransit.QuadraticModel(interpolate=False)
    model.set_data(times, nsamples=supersample, exptimes=exposure)
    return model


def random_gaps(n: int, points: int, seed: int, edge: float = 0.3, inside: float = 0.3, single: float = 0.01) -> Tensor:
    """Random patterns of missing points like those of real windows.

    With probability `edge` a window lacks a run at its start or its end (up to half of the points: an
    interrupted transit, a short coverage), and with probability `inside`, independently, a run anywhere
    (up to a tenth: a data download, flagged cadences). Each point is missing with probability `single` too (an
    outlier where a point is one cadence). At least 40 % of the points remain, up to these single ones, as the
    filters of the windows ask.

    Arguments:
        n: the number of windows.
        points: the number of points of a window.
        seed: of the patterns.
        edge, inside, single: probabilities, in [0, 1].

    Returns: True where a point is missing, with shape (n, points).
    """
    if n < 1 or points < 10:
        raise InputError(f"n must be at least 1 and points at least 10; got {n} and {points}")
    if not all(0 <= p <= 1 for p in (edge, inside, single)):
        raise InputError(f"edge, inside and single must lie in [0, 1]; got {edge}, {inside} and {single}")
    rng = np.random.default_rng(seed)
    j = np.arange(points)
    length = rng.integers(1, points // 2 + 1, (n, 1))
    at_edge = np.where(rng.random((n, 1)) < 0.5, j < length, j >= points - length)
    length = rng.integers(1, points // 10 + 1, (n, 1))
    start = rng.integers(0, points - length + 1)
    at_inside = (j >= start) & (j < start + length)
    missing = (at_edge & (rng.random((n, 1)) < edge)) | (at_inside & (rng.random((n, 1)) < inside))
    missing = missing | (rng.random((n, points)) < single)
    return torch.from_numpy(missing)
