from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from reprior.errors import InputError
from reprior_transits import photometry as ph
from reprior_transits.dips import find_dip
from reprior_transits.period import Ephemeris, Search, find_period, fit_ephemeris
from reprior_transits.targets import TARGETS, target
from reprior_transits.windows import WindowSettings, cut_windows, process


def flat(star, seed=0, **observe):
    return ph.normalise(star.observe(seed=seed, **observe))


def test_the_chain_recovers_depth_period_and_epoch_within_their_errors(star):
    truth = star(wave=0.01)
    photometry = process(truth.observe(seed=3))
    found, windows = photometry.ephemeris, photometry.windows
    # 4 standard errors as the fit states them (6 degrees of freedom: exceeded once in 140), and small ones.
    assert abs(found.period - truth.period) < 4 * found.period_error < 4 * 5e-4
    n = np.rint((found.epoch - truth.epoch) / truth.period)
    assert abs(found.epoch - truth.epoch - n * truth.period) < 4 * found.epoch_error < 4 * 2e-3
    # Depth: 1e-3 / sqrt(8 windows x 45 cadences) / 0.01 = 0.5 %; the margin is 4 of these.
    assert len(windows) == 8
    assert windows.found.all()
    assert windows.depth.mean() == pytest.approx(truth.depth, rel=0.02)
    # Points are means of 5 or 6 cadences: noise 1e-3 / sqrt(5.6) = 4.2e-4, known to 1/sqrt(2 x 750) = 3 %.
    assert windows.noise.mean() == pytest.approx(truth.noise / np.sqrt(5.625), rel=0.12)
    assert windows.x.shape == (8, 128)


def test_two_sectors_years_apart_are_joined_without_miscounting(star):
    truth = star(period=2.643898, depth=0.006, t14=0.042, t12=0.012, noise=5e-4, level=1.0)
    first = truth.observe(seed=4, start=1900.0)
    second = replace(truth, level=1.02).observe(seed=5, start=2640.0, sector=2)
    curve = ph.stitch([ph.normalise(first), ph.normalise(second)])
    # Only 0.1 d around each transit, as for GJ 436: P/2, P/3, ... fit as well, and the longest must win.
    near = np.abs((curve.time - truth.epoch + truth.period / 2) % truth.period - truth.period / 2) < 0.1
    photometry = process(curve.keep(near), WindowSettings(half_width=0.1))
    found = photometry.ephemeris
    assert abs(found.period - truth.period) < 4 * found.period_error < 4 * 5e-6
    assert len(photometry.windows) >= 16
    whole = np.rint((photometry.windows.mid_times - truth.epoch) / truth.period)
    assert np.abs(photometry.windows.mid_times - truth.epoch - whole * truth.period).max() < 0.005


def test_a_dip_of_noise_beside_a_gap_does_not_bend_the_ephemeris(star):
    # The fifth transit, at day 13.37, falls in the gap; the deepest dip near it is one of noise.
    truth = star(period=2.97137, epoch=1.48092, depth=0.0091, wave=0.01)
    found = process(truth.observe(seed=8)).ephemeris
    assert abs(found.period - truth.period) < 4 * found.period_error < 4 * 5e-4


def test_dips_are_found_within_their_stated_error(star):
    # Like WASP-126: the stated rms error is 1.4 minutes. Of 40 dips, its standard error is 1.4 / sqrt(80).
    truth = star(depth=0.007, t14=0.142, t12=0.01, noise=0.0013, epoch=0.0, level=1.0)
    time = np.arange(-0.75, 0.75, 120 / 86400)
    rng = np.random.default_rng(6)
    errors = []
    for _ in range(40):
        shift = rng.uniform(-0.001, 0.001)
        curve = ph.from_arrays(time, truth.transit(time - shift) + truth.noise * rng.standard_normal(len(time)))
        errors.append(find_dip(curve, 0.0, 0.13, 0.75) - shift)
    assert np.sqrt(np.mean(np.square(errors))) * 1440 < 1.4 * (1 + 4 / np.sqrt(80))


def test_a_gap_stays_empty_and_half_a_transit_keeps_its_predicted_time(star):
    truth = star(noise=3e-4)
    curve = flat(truth, gap=(25.9, 26.0))
    first, second = truth.epoch + truth.period, truth.epoch + 2 * truth.period
    hole = (curve.time > second + 0.2) & (curve.time < second + 0.3)  # beside a transit
    egress = (curve.time > first + 0.005) & (curve.time < first + 0.6)  # half a transit and what follows
    windows = cut_windows(curve.keep(~hole & ~egress), Ephemeris(truth.period, truth.epoch, 0.12))
    half, beside = windows.flux[1], windows.flux[2]
    width = 1 / 128
    assert not windows.found[1]
    assert windows.found[[0, 2, 3]].all()
    assert windows.mid_times[1] == pytest.approx(first, abs=1e-9)
    assert np.isnan(half[windows.time > 0.005 + width]).all()
    assert np.isfinite(half[windows.time < 0.005 - width]).all()
    offset = windows.time + windows.mid_times[2] - second
    assert np.isnan(beside[(offset > 0.2 + width) & (offset < 0.3 - width)]).all()
    assert np.isfinite(beside[(offset < 0.2 - width) | (offset > 0.3 + width)]).all()
    assert (windows.count[windows.missing] <= 2).all()  # under half of the five cadences that a bin can hold
    assert (windows.count[~windows.missing] >= 3).all()


def test_a_point_is_the_mean_of_its_cadences():
    time = np.arange(-0.6, 0.6, 120 / 86400)
    curve = ph.from_arrays(time, 1 - 0.01 * np.exp(-((time / 0.04) ** 2)))
    windows = cut_windows(curve, Ephemeris(3.0, 0.0, 0.1))
    rows = np.abs(time - windows.mid_times[0] - windows.time[40]) < 1 / 256
    assert windows.count[0, 40] == rows.sum()
    assert windows.flux[0, 40] == pytest.approx(curve.flux[rows].mean(), abs=1e-12)
    assert windows.mid_times[0] == pytest.approx(0.0, abs=1e-4)  # symmetric and without noise


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t, f: f + 0.06, "mean flux 1.0"),
        (lambda t, f: np.where(np.abs(t) < 0.03, 0.4, f), "minimum flux 0.4000 is below 0.5"),
        (lambda t, f: f * (1 + 0.04 * t), "a trend of 0.00031 per point"),
        (lambda t, f: np.where((t < -0.1) | (t > 0.1), np.nan, f), "20% of the window was observed"),
        (lambda t, f: np.where(np.abs(t) < 0.05, np.nan, f), "of the transit was observed, less than 40%"),
    ],
)
def test_each_quality_filter_rejects_with_its_reason(star, change, reason):
    truth = star(noise=3e-4, epoch=0.0, level=1.0)
    time = np.arange(-0.75, 0.75, 120 / 86400)
    curve = ph.from_arrays(time, change(time, truth.transit(time)))
    with pytest.raises(InputError, match=f"no transit gives a usable window.*{reason}"):
        cut_windows(curve, Ephemeris(3.3, 0.0, 0.12))


def test_a_rejected_window_is_reported_beside_the_kept_ones(star):
    curve = flat(star())
    bad = np.abs(curve.time - 1.234 - 3.3) < 0.6
    curve = replace(curve, flux=np.where(bad, curve.flux + 0.2, curve.flux))
    windows = cut_windows(curve, Ephemeris(3.3, 1.234, 0.12))
    assert len(windows) == 7
    assert [round(r.mid_time, 1) for r in windows.rejected] == [4.5]


def test_noise_alone_is_not_a_period(star):
    with pytest.raises(
        InputError, match=r"no transit found with a period of 1\.0 to 13\.5 d: the best box has a signal"
    ):
        find_period(flat(star(depth=0.0), seed=7))


def test_one_transit_is_not_a_period_but_gives_a_window_with_a_given_ephemeris(star):
    truth = star(period=100.0, epoch=5.0)
    curve = truth.observe(seed=8, days=12.0)
    with pytest.raises(InputError, match=r"a period needs two; give the ephemeris: Ephemeris\(period"):
        process(curve)
    windows = cut_windows(ph.normalise(curve), Ephemeris(100.0, 5.0, 0.12))
    assert len(windows) == 1
    with pytest.raises(InputError, match=r"1.49 d of data in one sector cannot show a period of 1.0 d"):
        process(truth.observe(seed=8, start=4.0, days=1.5))


def test_fitted_ephemeris_is_the_least_squares_line_with_its_standard_errors():
    rng = np.random.default_rng(9)
    n = np.array([0, 1, 3, 4, 7, 9])
    pulls = []
    for _ in range(400):
        times = 10.0 + 3.3 * n + 0.001 * rng.standard_normal(len(n))
        fit = fit_ephemeris(Ephemeris(3.301, 10.0, 0.1), times)
        pulls.append((fit.period - 3.3) / fit.period_error)
    # (fit - truth) / error follows Student's t with 4 degrees of freedom: |t| < 2.132 with probability 0.9.
    assert np.mean(np.abs(pulls) < 2.132) == pytest.approx(0.9, abs=4 * np.sqrt(0.09 / 400))
    with pytest.raises(InputError, match="two transits; got 1"):
        fit_ephemeris(Ephemeris(3.3, 10.0, 0.1), [10.0])


def test_settings_name_the_bad_value():
    with pytest.raises(InputError, match="half_width must be > 0 days; got -1"):
        WindowSettings(half_width=-1)
    with pytest.raises(InputError, match=r"coverage must lie in \(0, 1\]; got 2"):
        WindowSettings(coverage=2)
    with pytest.raises(InputError, match="0 < shortest < longest; got 3 and 2"):
        Search(shortest=3, longest=2)
    with pytest.raises(InputError, match="duration must lie between 0 and period/2"):
        Ephemeris(1.0, 0.0, 0.6)
    curve = ph.from_arrays(np.arange(720) / 720, np.ones(720))
    with pytest.raises(InputError, match=r"half_width must be at least 0\.08889 d for 128 points"):
        cut_windows(curve, Ephemeris(3.0, 0.5, 0.05), WindowSettings(half_width=0.05))


def test_targets_are_found_by_any_spelling_and_carry_their_sources():
    assert target("WASP-39 b") is target("wasp 39") is TARGETS["wasp-39"]
    assert target("GJ 436").windows.half_width == 0.1
    for known in TARGETS.values():
        assert known.reference.source
        assert np.isfinite(known.reference.theta).all()
    # The circular equivalent of the eccentric orbit of GJ 436 b, from the published elements.
    e, w, a, b = 0.1616, np.deg2rad(327.2), 14.54, np.deg2rad(86.858)
    circular = a * (1 + e * np.sin(w)) / np.sqrt(1 - e**2)
    impact = a * np.cos(b) * (1 - e**2) / (1 + e * np.sin(w))
    assert target("gj-436").reference.a == pytest.approx(circular, abs=0.01)
    assert target("gj-436").reference.inc == pytest.approx(np.rad2deg(np.arccos(impact / circular)), abs=0.005)
    with pytest.raises(InputError, match="unknown target 'HD 1'; built in: wasp-39, wasp-126, gj-436"):
        target("HD 1")
