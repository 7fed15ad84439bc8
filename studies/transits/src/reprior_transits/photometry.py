"""Photometry: from a file or a download to a clean, flat light curve.

A light curve is a series of brightness measurements (cadences) f_i at times t_i. The steps, in order:

1. read (`files.py`): rows with a quality flag, or without a time or a flux, are dropped.
2. normalise: f_i / median of its sector.
3. clip: a cadence is dropped where it lies more than 5 robust sigma outside the running 20 % and 80 %
   quantiles of the 30 minutes around it. A cosmic ray is; a transit is not: on its slopes a point lies
   between its neighbours, and at its bottom near the lowest of them (a limit around the running median
   would cut the round bottom of a short, deep transit).
4. detrend: f_i / b(t_i), with b(t) the straight line fitted by least squares to the cadences within w/2
   of t in the same sector, the transits left out. It is a Savitzky-Golay filter of order 1 that uses the
   real times: gaps and masked transits are missing points, nothing is interpolated, and where only a
   short stretch exists around a transit (GJ 436) it becomes one straight line through both sides of that
   transit.
5. stitch: sectors, each normalised, are put one after the other.

Without the mask the trend follows the transit and eats it: with a window of 0.25 d, more than 30 % of the depth
(`tests/test_photometry.py`).

Units: days for times (BTJD = BJD_TDB - 2457000 for TESS), relative flux (1 out of transit) after `normalise`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from reprior.errors import InputError

__all__ = [
    "LightCurve",
    "clip",
    "detrend",
    "from_arrays",
    "normalise",
    "running_median",
    "scatter",
    "stitch",
]

Array = NDArray[np.float64]
CLIP_WINDOW = 30 / 1440  # days: some 15 cadences of two minutes, a fraction of a transit
DETREND_WINDOW = 1.0  # days: several transit durations, far less than a rotation of the star


@dataclass(frozen=True)
class LightCurve:
    """Cadences in order of time, all finite. Build one with `read`, `download` or `from_arrays`.

    Arguments:
        time: mid-times t_i in days, increasing, with shape (n,).
        flux: f_i, with shape (n,).
        flux_err: the standard errors of flux, NaN where unknown, with shape (n,).
        sector: the sector number of each cadence, with shape (n,).
        name: what was observed.
    """

    time: Array
    flux: Array
    flux_err: Array
    sector: NDArray[np.int64]
    name: str = "unnamed"

    def __post_init__(self) -> None:
        n = len(self.time)
        for field in ("time", "flux", "flux_err", "sector"):
            if getattr(self, field).shape != (n,):
                raise InputError(f"{field} must have shape ({n},), like time; got {getattr(self, field).shape}")
        if n == 0:
            raise InputError(f"{self.name}: the light curve holds no cadence")
        if not (np.isfinite(self.time).all() and np.isfinite(self.flux).all()):
            raise InputError(f"{self.name}: time and flux must be finite; from_arrays drops the other rows")
        if not (np.diff(self.time) > 0).all():
            raise InputError(f"{self.name}: times must increase, without duplicates; from_arrays sorts them")

    def __len__(self) -> int:
        return len(self.time)

    def keep(self, rows: NDArray[np.bool_]) -> LightCurve:
        """The cadences where rows, with shape (n,), is True."""
        return replace(
            self,
            time=self.time[rows],
            flux=self.flux[rows],
            flux_err=self.flux_err[rows],
            sector=self.sector[rows],
        )

    @property
    def cadence(self) -> float:
        """The median step between neighbouring cadences, in days."""
        if len(self) < 2:
            raise InputError(f"{self.name}: one cadence has no time step")
        return float(np.median(np.diff(self.time)))


def from_arrays(
    time: ArrayLike,
    flux: ArrayLike,
    flux_err: ArrayLike = np.nan,
    quality: ArrayLike = 0,
    sector: ArrayLike = 1,
    name: str = "unnamed",
) -> LightCurve:
    """A light curve from raw columns: flagged and unusable rows dropped, sorted, one of each duplicate kept.

    Arguments:
        time, flux: with shape (n,); rows where either is NaN or infinite are dropped.
        flux_err, quality, sector: with shape (n,), or one number for all. Rows with quality != 0 are dropped.
        name: what was observed.
    """
    t, f = np.asarray(time, dtype=float), np.asarray(flux, dtype=float)
    if t.ndim != 1 or t.shape != f.shape:
        raise InputError(f"{name}: time and flux must be 1-D of one length; got shapes {t.shape} and {f.shape}")
    err, flag, block = (np.broadcast_to(np.asarray(v, dtype=float), t.shape) for v in (flux_err, quality, sector))
    finite, good = np.isfinite(t) & np.isfinite(f), flag == 0
    rows = np.flatnonzero(finite & good)
    if len(rows) == 0:
        raise InputError(
            f"{name}: no usable cadence among {len(t)} rows ({int((~finite).sum())} without a finite time "
            f"and flux, {int((~good).sum())} with a quality flag)"
        )
    rows = rows[np.unique(t[rows], return_index=True)[1]]
    return LightCurve(t[rows], f[rows], err[rows], block[rows].astype(np.int64), name)


def stitch(curves: list[LightCurve]) -> LightCurve:
    """One light curve from several (normalise each first: sectors have different flux levels)."""
    if not curves:
        raise InputError("stitch needs at least one light curve; got an empty list")
    levels = [float(np.median(curve.flux)) for curve in curves]
    if max(levels) > 1.05 * min(levels):
        raise InputError(f"median fluxes differ ({', '.join(f'{v:.5g}' for v in levels)}): normalise each curve first")
    time, flux, err, sector = (
        np.concatenate([getattr(curve, field) for curve in curves]) for field in ("time", "flux", "flux_err", "sector")
    )
    return from_arrays(time, flux, err, 0, sector, curves[0].name)


def normalise(curve: LightCurve) -> LightCurve:
    """Divides each sector by its median flux."""
    level = np.empty(len(curve))
    for sector in np.unique(curve.sector):
        rows = curve.sector == sector
        level[rows] = np.median(curve.flux[rows])
        if not level[rows][0] > 0:
            raise InputError(f"{curve.name}, sector {sector}: the median flux must be > 0; got {level[rows][0]:.5g}")
    return replace(curve, flux=curve.flux / level, flux_err=curve.flux_err / level)


def clip(curve: LightCurve, sigma: float = 5.0, window: float = CLIP_WINDOW) -> LightCurve:
    """Drops outliers, above and below, sector by sector; see the top of this file.

    Arguments:
        sigma: the limit, in robust standard deviations (1.4826 times the median absolute deviation from the
            running median) beyond the running quantiles.
        window: the full width of the running quantiles, in days.
    """
    if not sigma > 0:
        raise InputError(f"sigma must be > 0; got {sigma}")
    low, middle, high = (_running_quantile(curve, window, q) for q in (0.2, 0.5, 0.8))
    limit = np.empty(len(curve))
    for sector in np.unique(curve.sector):
        rows = curve.sector == sector
        limit[rows] = sigma * 1.4826 * np.median(np.abs(curve.flux - middle)[rows])
    return curve.keep((curve.flux >= low - limit) & (curve.flux <= high + limit))


def running_median(curve: LightCurve, window: float) -> Array:
    """The median flux within window/2 days of each cadence, in its sector, with shape (n,)."""
    return _running_quantile(curve, window, 0.5)


def detrend(curve: LightCurve, masked: NDArray[np.bool_], window: float = DETREND_WINDOW) -> LightCurve:
    """Divides by the local straight line b(t) of the unmasked cadences; see the top of this file.

    A cadence with fewer than ten unmasked ones within window/2 days has no baseline and is dropped.

    Arguments:
        masked: True in transit (`Ephemeris.in_transit`), with shape (n,).
        window: the full width w of the fit, in days: several transit durations, far less than a rotation.
    """
    if masked.shape != (len(curve),):
        raise InputError(f"masked must have shape ({len(curve)},); got {masked.shape}")
    if not window > 0:
        raise InputError(f"window must be > 0 days; got {window}")
    trend = np.full(len(curve), np.nan)
    for sector in np.unique(curve.sector):
        rows = curve.sector == sector
        trend[rows] = _local_line(curve.time[rows], curve.flux[rows], ~masked[rows], window)
    good = np.isfinite(trend) & (trend > 0)
    if not good.any():
        raise InputError(f"{curve.name}: no cadence has ten unmasked neighbours within {window / 2} d")
    curve, trend = curve.keep(good), trend[good]
    return replace(curve, flux=curve.flux / trend, flux_err=curve.flux_err / trend)


def scatter(curve: LightCurve) -> float:
    """The white noise of one cadence: the robust standard deviation of neighbours' differences / sqrt(2)."""
    step = np.diff(curve.flux)[np.diff(curve.time) < 1.5 * curve.cadence]
    return float(1.4826 * np.median(np.abs(step - np.median(step))) / np.sqrt(2))


def _running_quantile(curve: LightCurve, window: float, q: float) -> Array:
    if not window > 0:
        raise InputError(f"window must be > 0 days; got {window}")
    out, width = np.empty(len(curve)), timedelta(days=window)
    for sector in np.unique(curve.sector):
        rows = curve.sector == sector
        days = pd.to_timedelta(curve.time[rows] - curve.time[0], unit="D")
        rolling = pd.Series(curve.flux[rows], index=days).rolling(width, center=True)
        out[rows] = (rolling.median() if q == 0.5 else rolling.quantile(q)).to_numpy()
    return out


def _local_line(time: Array, flux: Array, used: NDArray[np.bool_], window: float) -> Array:
    # Sums over a moving window are differences of running sums; times are centred first, to keep digits.
    t = time - time.mean()
    x, y = t[used], flux[used]
    first, last = np.searchsorted(x, t - window / 2), np.searchsorted(x, t + window / 2, side="right")
    n, sx, sy, sxx, sxy = (
        (total := np.concatenate([[0.0], np.cumsum(v)]))[last] - total[first]
        for v in (np.ones_like(x), x, y, x * x, x * y)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = (n * sxy - sx * sy) / (n * sxx - sx * sx)
        line = sy / n + slope * (t - sx / n)
    return np.where(n >= 10, line, np.nan)
