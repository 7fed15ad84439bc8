"""The period of the transits: Box Least Squares, then a straight line through the mid-times.

Box Least Squares (Kovacs, Zucker and Mazeh 2002; here astropy's) folds the light curve at each trial period
P and fits a box of depth d and duration D at each phase. The signal-to-noise of d ranks the periods. Three
rules are added:

- The search uses the sector with most cadences, in 10-minute bins. The grid of frequencies needed grows as
  the square of the time span, so two sectors years apart are joined afterwards, by following the mid-times
  from sector to sector.
- A series cut to the neighbourhood of its transits cannot tell P from P/2, P/3, ... (nothing is observed
  where the extra transits would be). So the longest of P, 2P, ... that keeps 95 % of the signal-to-noise
  wins. The signal-to-noise grows as the square root of the number of transits in the box, so with full
  coverage 2P keeps 71 % (82 % at most, of three).
- A best box below 7.1 sigma (the limit of the Kepler mission) is an error, "no transit found", not a period.

The refined ephemeris is the least-squares line t_n = t_0 + n P through the mid-times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from astropy.timeseries import BoxLeastSquares
from numpy.typing import ArrayLike, NDArray

from reprior.errors import InputError
from reprior_transits.photometry import Array, LightCurve, scatter

__all__ = ["Ephemeris", "Search", "find_period", "fit_ephemeris"]


@dataclass(frozen=True)
class Ephemeris:
    """When the transits happen: t_n = epoch + n period.

    Arguments:
        period: P in days.
        epoch: a mid-transit time t_0 in days, on the clock of the light curve.
        duration: the duration D of the transit in days (of the best box, between full and total duration).
        period_error, epoch_error: standard errors in days; NaN where unknown.
        snr: the signal-to-noise of the transit depth in the search; NaN where there was no search.
    """

    period: float
    epoch: float
    duration: float
    period_error: float = float("nan")
    epoch_error: float = float("nan")
    snr: float = float("nan")

    def __post_init__(self) -> None:
        if not (np.isfinite(self.period) and self.period > 0 and np.isfinite(self.epoch)):
            raise InputError(f"period must be > 0 and epoch finite; got {self.period} and {self.epoch}")
        if not 0 < self.duration < self.period / 2:
            raise InputError(f"duration must lie between 0 and period/2 = {self.period / 2:.5g} d; got {self.duration}")

    def cycle(self, time: ArrayLike) -> NDArray[np.int64]:
        """The number n of the transit nearest to each time."""
        return np.rint((np.asarray(time, dtype=float) - self.epoch) / self.period).astype(np.int64)

    def mid_time(self, cycle: ArrayLike) -> Array:
        """t_n for each n."""
        return self.epoch + np.asarray(cycle, dtype=float) * self.period

    def phase(self, time: ArrayLike) -> Array:
        """The time since the nearest mid-transit, in days."""
        return np.asarray(time, dtype=float) - self.mid_time(self.cycle(time))

    def in_transit(self, time: ArrayLike, widen: float = 2.0) -> NDArray[np.bool_]:
        """True within widen * duration / 2 of a mid-transit.

        The default covers a grazing, V-shaped transit, whose total duration is twice that of its best box.
        """
        return np.abs(self.phase(time)) < widen * self.duration / 2


@dataclass(frozen=True)
class Search:
    """Settings of the period search.

    Arguments:
        shortest, longest: the range of periods in days; the longest is cut to half the span of the data.
        durations: trial durations in days.
        bin_width: days per bin of the searched series.
        snr: the smallest signal-to-noise that counts as a transit.
        keep: the fraction of the best signal-to-noise with which a multiple of the best period replaces it.
    """

    shortest: float = 1.0
    longest: float = 15.0
    durations: tuple[float, ...] = (0.03, 0.04, 0.055, 0.075, 0.1, 0.13, 0.17, 0.22)
    bin_width: float = 10 / 1440
    snr: float = 7.1
    keep: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.shortest < self.longest:
            raise InputError(f"periods need 0 < shortest < longest; got {self.shortest} and {self.longest}")
        if not self.durations or not 0 < min(self.durations) <= max(self.durations) < self.shortest:
            raise InputError(f"durations must lie between 0 and the shortest period; got {self.durations}")
        if not 0 < self.bin_width <= min(self.durations) / 2:
            raise InputError(f"bin_width must be > 0 and at most half the shortest duration; got {self.bin_width}")
        if not (self.snr > 0 and 0.85 <= self.keep < 1):
            raise InputError(f"snr must be > 0 and keep in [0.85, 1); got {self.snr} and {self.keep}")


def find_period(curve: LightCurve, search: Search = Search()) -> Ephemeris:  # noqa: B008
    """The period, epoch and duration of the strongest periodic box in a normalised, flat light curve.

    Arguments:
        curve: relative flux, near 1; slow trends removed (a running median over a day is enough here).
        search: settings.
    """
    sectors, counts = np.unique(curve.sector, return_counts=True)
    rows = curve.sector == sectors[np.argmax(counts)]
    time, flux, error = _bin(curve.keep(rows), search.bin_width)
    span = time[-1] - time[0]
    longest = min(search.longest, span / 2)
    if longest <= search.shortest:
        raise InputError(
            f"{curve.name}: {span:.3g} d of data in one sector cannot show a period of {search.shortest} d "
            "or more twice; give the ephemeris: Ephemeris(period, epoch, duration)"
        )
    box = BoxLeastSquares(time - time[0], flux, error)
    # A step of one shortest duration over the whole span: the last transit then still overlaps its box.
    step = min(search.durations) / span**2
    periods = 1 / np.arange(1 / longest, 1 / search.shortest, step)
    best = _best(box, periods, search.durations, oversample=4)
    best = _best(box, _around(best[0], step), search.durations)
    if not best[1] >= search.snr:
        raise InputError(
            f"{curve.name}: no transit found with a period of {search.shortest} to {longest:.3g} d: the best "
            f"box has a signal-to-noise of {best[1]:.1f}, and {search.snr} is needed"
        )
    period, snr, epoch, duration = _longest_multiple(box, best, longest, step, search)
    return Ephemeris(period, epoch + float(time[0]), duration, snr=snr)


def fit_ephemeris(ephemeris: Ephemeris, mid_times: ArrayLike) -> Ephemeris:
    """The least-squares line through mid-times, with standard errors from their scatter (NaN for two).

    Arguments:
        ephemeris: numbers the transits; must be right within half a period at each of them.
        mid_times: measured mid-transit times, with shape (n,), of at least two different transits.
    """
    times = np.asarray(mid_times, dtype=float)
    cycles = ephemeris.cycle(times)
    if len(np.unique(cycles)) < 2:
        raise InputError(f"a period needs the mid-times of two transits; got {len(np.unique(cycles))}")
    centre = int(np.rint(np.median(cycles)))
    design = np.stack([np.ones(len(times)), cycles - centre], axis=1)
    (epoch, period), *_ = np.linalg.lstsq(design, times - ephemeris.mid_time(cycles), rcond=None)
    residual = times - ephemeris.mid_time(cycles) - design @ np.array([epoch, period])
    errors = np.full(2, np.nan)
    if len(times) > 2:
        variance = residual @ residual / (len(times) - 2)
        errors = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * variance)
    return Ephemeris(
        ephemeris.period + float(period),
        float(ephemeris.mid_time(centre)) + float(epoch),
        ephemeris.duration,
        float(errors[1]),
        float(errors[0]),
        ephemeris.snr,
    )


def _bin(curve: LightCurve, width: float) -> tuple[Array, Array, Array]:
    # Means over bins that hold a cadence; the error of a mean falls as 1/sqrt(count).
    index = np.floor((curve.time - curve.time[0]) / width).astype(np.int64)
    _, index, count = np.unique(index, return_inverse=True, return_counts=True)
    time = np.bincount(index, curve.time - curve.time[0]) / count + curve.time[0]
    flux = np.bincount(index, curve.flux) / count
    return time, flux, scatter(curve) / np.sqrt(count)


Box = tuple[float, float, float, float]  # period, signal-to-noise, epoch, duration


def _best(box: Any, periods: Array, durations: tuple[float, ...], oversample: int = 10) -> Box:
    result = box.power(periods, list(durations), objective="snr", oversample=oversample)
    i = int(np.argmax(result.power))
    period, snr, epoch, duration = (result.period, result.power, result.transit_time, result.duration)
    return float(period[i]), float(snr[i]), float(epoch[i]), float(duration[i])


def _around(period: float, step: float) -> Array:
    return 1 / (1 / period + step * np.linspace(-2, 2, 81))


def _longest_multiple(box: Any, best: Box, longest: float, step: float, search: Search) -> Box:
    chosen = best
    for multiple in range(2, int(longest / best[0]) + 1):
        candidate = _best(box, _around(multiple * best[0], step / multiple), search.durations)
        if candidate[1] >= search.keep * best[1]:
            chosen = candidate
    return chosen
