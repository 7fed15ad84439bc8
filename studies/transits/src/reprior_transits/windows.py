"""Windows: one transit each, on one grid of times, ready to be an observation x.

A window holds the flux within h (the half-width) of a mid-transit time, on 128 equal bins:

    x_j = mean of f_i with t_i - t_mid in [ -h + j w, -h + (j + 1) w ),      w = 2 h / 128,    j = 0 ... 127.

Bins and not interpolation (the paper's choice): a mean uses every cadence, where an interpolated point uses
two of the five or six in an 11-minute bin and is 1.9 times noisier; its noise is independent from point to
point, as the simulator assumes; and a bin without data stays empty, where interpolation draws a line across
the gap. A bin with fewer than half of the cadences it could hold is missing: NaN. Nothing is filled in. The
price is that a point is an average over w, so the simulator averages over w too (`transit.TransitSimulator`).

Filters: |mean flux - 1| > 5 %, minimum < 0.5, a linear trend above 2e-4 per point (as in the paper, there
per cadence; fitted here to the points out of transit, as half a transit is itself a trend), and fewer than
40 % of the points, or of the points in transit, present. A window that fails is kept apart with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reprior.errors import InputError
from reprior_transits.dips import find_dips, observed_cycles, refine, rough_flatten
from reprior_transits.period import Ephemeris, Search, find_period
from reprior_transits.photometry import DETREND_WINDOW, Array, LightCurve, clip, detrend, normalise

__all__ = ["Photometry", "Rejected", "WindowSettings", "Windows", "cut_windows", "grid", "process"]


@dataclass(frozen=True)
class WindowSettings:
    """Settings of the windows.

    Arguments:
        half_width: h in days.
        points: the number of bins.
        search: the dip is looked for within search * half_width of its predicted time.
        fill: the fraction of a bin's cadences below which the point is missing.
        coverage: the smallest fraction of points present, in the window and in transit.
        mean_limit: the largest |mean flux - 1|.
        lowest: the smallest flux.
        trend_limit: the largest linear trend out of transit, per point.
    """

    half_width: float = 0.5
    points: int = 128
    search: float = 1.5
    fill: float = 0.5
    coverage: float = 0.4
    mean_limit: float = 0.05
    lowest: float = 0.5
    trend_limit: float = 2e-4

    def __post_init__(self) -> None:
        if not self.half_width > 0:
            raise InputError(f"half_width must be > 0 days; got {self.half_width}")
        if self.points < 8:
            raise InputError(f"points must be at least 8; got {self.points}")
        if not self.search >= 1:
            raise InputError(f"search must be at least 1; got {self.search}")
        for name in ("fill", "coverage"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"{name} must lie in (0, 1]; got {getattr(self, name)}")
        for name in ("mean_limit", "lowest", "trend_limit"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be > 0; got {getattr(self, name)}")

    @property
    def bin_width(self) -> float:
        """w in days: the exposure time of one point."""
        return 2 * self.half_width / self.points


@dataclass(frozen=True)
class Rejected:
    """A transit that gave no window: its mid-time in days, and why."""

    mid_time: float
    reason: str


@dataclass(frozen=True)
class Windows:
    """The windows of one target, in order of time.

    Arguments:
        time: bin centres relative to the mid-time, in days, with shape (points,).
        flux: relative flux, NaN where missing, with shape (n, points).
        count: the number of cadences in each bin, with shape (n, points).
        mid_times: the time at the centre of each window, with shape (n,).
        cycles: the number of each transit, with shape (n,).
        found: True where the centre is a measured dip, False where it is the predicted time, with shape (n,).
        duration: of the transit, in days.
        rejected: the transits that gave no window.
        name: what was observed.
    """

    time: Array
    flux: Array
    count: NDArray[np.int64]
    mid_times: Array
    cycles: NDArray[np.int64]
    found: NDArray[np.bool_]
    duration: float
    rejected: tuple[Rejected, ...] = field(default=())
    name: str = "unnamed"

    def __len__(self) -> int:
        return len(self.flux)

    @property
    def x(self) -> Tensor:
        """The flux as observations, float32, NaN where missing, with shape (n, points)."""
        return torch.as_tensor(self.flux, dtype=torch.float32)

    def keep(self, rows: NDArray[np.bool_], reason: str) -> Windows:
        """The windows where `rows`, with shape (n,), is True; the others are rejected for the reason."""
        others = tuple(Rejected(float(time), reason) for time in self.mid_times[~rows])
        if not rows.any():
            raise InputError(f"{self.name}: no window is left: {reason}")
        parts = {name: getattr(self, name)[rows] for name in ("flux", "count", "mid_times", "cycles", "found")}
        return replace(self, **parts, rejected=self.rejected + others)

    @property
    def missing(self) -> NDArray[np.bool_]:
        """True where a point is missing, with shape (n, points)."""
        return np.isnan(self.flux)

    @property
    def depth(self) -> Array:
        """The median flux out of transit less the mean in the middle half of the transit, with shape (n,)."""
        middle = np.abs(self.time) < max(self.duration / 4, abs(self.time).min() * 1.01)
        baseline = np.nanmedian(self.flux[:, self._outside], axis=1)
        return np.asarray(baseline - np.nanmean(self.flux[:, middle], axis=1), dtype=float)

    @property
    def noise(self) -> Array:
        """The standard deviation of the points out of transit, with shape (n,)."""
        return np.asarray(np.nanstd(self.flux[:, self._outside], axis=1, ddof=1), dtype=float)

    @property
    def _outside(self) -> NDArray[np.bool_]:
        return np.abs(self.time) > self.duration


@dataclass(frozen=True)
class Photometry:
    """What `process` gives: the flat light curve, the ephemeris and the windows."""

    curve: LightCurve
    ephemeris: Ephemeris
    windows: Windows


def grid(settings: WindowSettings) -> Array:
    """The bin centres, in days from the mid-time, with shape (points,)."""
    centres = np.arange(settings.points, dtype=np.float64) + 0.5
    return centres * settings.bin_width - settings.half_width


def process(
    curve: LightCurve,
    settings: WindowSettings = WindowSettings(),  # noqa: B008
    search: Search = Search(),  # noqa: B008
    detrend_window: float = DETREND_WINDOW,
) -> Photometry:
    """The whole chain: normalise, clip, find the transits, detrend with them masked, cut the windows.

    Arguments:
        curve: as read, with one or more sectors.
        settings: of the windows.
        search: of the period.
        detrend_window: the width of the local baseline in days; see `photometry.detrend`.
    """
    search_width = settings.search * settings.half_width
    clean = clip(normalise(curve))
    rough = rough_flatten(clean)
    ephemeris = refine(rough, find_period(rough, search), search_width)
    flat = detrend(clean, ephemeris.in_transit(clean.time), detrend_window)
    ephemeris = refine(flat, ephemeris, search_width)
    return Photometry(flat, ephemeris, cut_windows(flat, ephemeris, settings))


def cut_windows(
    curve: LightCurve,
    ephemeris: Ephemeris,
    settings: WindowSettings = WindowSettings(),  # noqa: B008
) -> Windows:
    """One window per observed transit, centred on its dip, or on its predicted time if the dip is incomplete.

    Arguments:
        curve: flat relative flux.
        ephemeris: of the transits.
        settings: of the windows.
    """
    if settings.bin_width < curve.cadence:
        raise InputError(
            f"bins of {settings.bin_width * 1440:.3g} min are shorter than the cadence of "
            f"{curve.cadence * 1440:.3g} min: half_width must be at least "
            f"{curve.cadence * settings.points / 2:.4g} d for {settings.points} points"
        )
    dips = find_dips(curve, ephemeris, min(settings.search * settings.half_width, ephemeris.period / 2))
    time = grid(settings)
    kept: list[tuple[Array, NDArray[np.int64], float, int, bool]] = []
    rejected: list[Rejected] = []
    for n in observed_cycles(curve, ephemeris, settings.half_width):
        predicted = float(ephemeris.mid_time(n))
        dip = dips.get(n, float("nan"))
        found = bool(abs(dip - predicted) <= ephemeris.duration)  # False for NaN
        centre = dip if found else predicted
        flux, count = _bins(curve, centre, settings)
        reason = _fault(time, flux, ephemeris.duration, settings)
        if reason:
            rejected.append(Rejected(centre, reason))
        else:
            kept.append((flux, count, centre, n, found))
    if not kept:
        reasons = "; ".join(f"{r.mid_time:.4f}: {r.reason}" for r in rejected) or "none is near the data"
        raise InputError(f"{curve.name}: no transit gives a usable window ({reasons})")
    fluxes, counts, centres, cycles, founds = zip(*kept, strict=True)
    return Windows(
        time,
        np.stack(fluxes),
        np.stack(counts),
        np.array(centres),
        np.array(cycles),
        np.array(founds),
        ephemeris.duration,
        tuple(rejected),
        curve.name,
    )


def _bins(curve: LightCurve, centre: float, settings: WindowSettings) -> tuple[Array, NDArray[np.int64]]:
    index = np.floor((curve.time - centre + settings.half_width) / settings.bin_width).astype(np.int64)
    rows = (index >= 0) & (index < settings.points)
    count = np.bincount(index[rows], minlength=settings.points)
    total = np.bincount(index[rows], curve.flux[rows], minlength=settings.points)
    enough = count >= max(1.0, settings.fill * np.floor(settings.bin_width / curve.cadence))
    return np.where(enough, total / np.maximum(count, 1), np.nan), count


def _fault(time: Array, flux: Array, duration: float, settings: WindowSettings) -> str:
    """Why a window cannot be used; empty where it can."""
    present = np.isfinite(flux)
    inside = np.abs(time) <= max(duration / 2, settings.bin_width)
    outside = present & (np.abs(time) > duration)
    for where, fraction in (("the window", present.mean()), ("the transit", present[inside].mean())):
        if fraction < settings.coverage:
            return f"{fraction:.0%} of {where} was observed, less than {settings.coverage:.0%}"
    if abs(flux[present].mean() - 1) > settings.mean_limit:
        return f"mean flux {flux[present].mean():.4f} is more than {settings.mean_limit} from 1"
    if flux[present].min() < settings.lowest:
        return f"minimum flux {flux[present].min():.4f} is below {settings.lowest}"
    if outside.sum() < 8:
        return f"{int(outside.sum())} points out of transit, and a baseline needs 8"
    trend = float(np.polyfit(np.flatnonzero(outside), flux[outside], 1)[0])
    if abs(trend) > settings.trend_limit:
        return f"a trend of {trend:.2g} per point, above {settings.trend_limit}"
    return ""
