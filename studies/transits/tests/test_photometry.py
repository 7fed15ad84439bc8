from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from reprior.errors import InputError
from reprior_transits import photometry as ph
from reprior_transits.period import Ephemeris


def middle_depth(curve, truth):
    """1 - mean flux in the flat middle of the transits, over the mean within 0.2 d outside them."""
    away = np.abs((curve.time - truth.epoch + truth.period / 2) % truth.period - truth.period / 2)
    inside, outside = away < truth.t14 / 2 - truth.t12, (away > truth.t14 / 2) & (away < truth.t14 / 2 + 0.2)
    return 1 - curve.flux[inside].mean() / curve.flux[outside].mean()


def test_rows_without_flux_with_a_flag_or_twice_are_dropped_and_the_rest_is_sorted():
    curve = ph.from_arrays(
        [3.0, 1.0, 2.0, 2.0, 5.0, np.nan], [1.0, 2.0, 3.0, 9.0, np.nan, 1.0], quality=[0, 0, 0, 0, 0, 0]
    )
    assert curve.time.tolist() == [1.0, 2.0, 3.0]
    assert curve.flux.tolist() == [2.0, 3.0, 1.0]
    flagged = ph.from_arrays([1.0, 2.0], [1.0, 1.0], quality=[0, 8])
    assert flagged.time.tolist() == [1.0]


def test_a_series_with_no_usable_row_says_what_was_wrong():
    with pytest.raises(InputError, match=r"no usable cadence among 5 rows \(5 without a finite time and flux, 0 with"):
        ph.from_arrays(np.arange(5.0), np.full(5, np.nan), name="empty")
    with pytest.raises(InputError, match="5 with a quality flag"):
        ph.from_arrays(np.arange(5.0), np.ones(5), quality=1)
    with pytest.raises(InputError, match=r"one length; got shapes \(5,\) and \(4,\)"):
        ph.from_arrays(np.arange(5.0), np.ones(4))


def test_each_sector_is_divided_by_its_own_median():
    a = ph.from_arrays([0.0, 1.0, 2.0], [10.0, 20.0, 30.0], sector=1)
    b = ph.from_arrays([9.0, 10.0, 11.0], [1.0, 2.0, 3.0], sector=2)
    with pytest.raises(InputError, match="normalise each curve first"):
        ph.stitch([a, b])
    both = ph.stitch([ph.normalise(b), ph.normalise(a)])
    assert both.flux.tolist() == [0.5, 1.0, 1.5, 0.5, 1.0, 1.5]
    assert both.sector.tolist() == [1, 1, 1, 2, 2, 2]
    with pytest.raises(InputError, match="median flux must be > 0; got -2"):
        ph.normalise(replace(a, flux=-a.flux / 10))


def test_clip_drops_spikes_and_keeps_short_deep_transits_seen_with_little_noise():
    # Round transits of one hour, 100 sigma deep; a limit around the running median would fail (last line).
    time = np.arange(0, 27, 120 / 86400)
    away = (time - 1) % 2 - 1
    transit = 1 - 0.01 * np.clip(1 - (away / 0.02) ** 2, 0, None)
    clean = transit + 1e-4 * np.random.default_rng(0).standard_normal(len(time))
    spikes = np.arange(50, len(time), 500)
    flux = clean.copy()
    flux[spikes] += np.where(np.arange(len(spikes)) % 2 == 0, 0.002, -0.002)
    kept = ph.clip(ph.from_arrays(time, flux))
    lost = ~np.isin(time, kept.time)
    assert lost[spikes].all()
    lost[spikes] = False
    # Gaussian noise leaves 5 sigma beyond a quantile (itself 0.8 sigma out) about once in 1e8.
    assert lost.sum() == 0
    residual = np.abs(clean - ph.running_median(ph.from_arrays(time, clean), ph.CLIP_WINDOW))
    assert (residual > 5 * 1.4826 * np.median(residual)).sum() > 20


def test_masked_detrend_keeps_the_depth_within_two_percent_and_removes_the_wave(star):
    truth = star(noise=2e-4, wave=0.01)
    curve = ph.normalise(truth.observe(seed=1))
    ephemeris = Ephemeris(truth.period, truth.epoch, truth.t14 - truth.t12)
    flat = ph.detrend(curve, ephemeris.in_transit(curve.time))
    # A mean over 8 transits of 72 cadences: the sampling error is 2e-4 / sqrt(576) / 0.01 = 0.1 %.
    assert abs(middle_depth(flat, truth) / truth.depth - 1) < 0.02
    outside = ~ephemeris.in_transit(flat.time)
    assert np.std(curve.flux[~ephemeris.in_transit(curve.time)]) > 20 * truth.noise
    # A line over w = 1 leaves c w^2 / 12 of a curvature c: at most 0.01 (2 pi / 6)^2 / 2 / 12 = 5e-4.
    assert np.std(flat.flux[outside]) < 5e-4
    eaten = ph.detrend(curve, np.zeros(len(curve), dtype=bool), window=0.25)
    assert middle_depth(eaten, truth) < 0.7 * truth.depth


def test_detrend_is_an_exact_line_on_an_isolated_stretch_around_a_transit(star):
    # 0.2 d of data with a steep slope, as for GJ 436: without noise the depth comes back exactly.
    truth = star(epoch=0.0, depth=0.006, t14=0.042, t12=0.01, noise=0.0)
    time = np.arange(-0.08, 0.12, 120 / 86400)
    slope = 1 + 0.05 * time
    curve = ph.from_arrays(time, slope * truth.transit(time))
    flat = ph.detrend(curve, np.abs(time) < 0.03)
    np.testing.assert_allclose(flat.flux, truth.transit(time), rtol=0, atol=1e-12)


def test_detrend_drops_what_has_no_baseline_and_says_when_nothing_is_left():
    time = np.concatenate([np.arange(100) / 720, 50 + np.arange(8) / 720])
    curve = ph.from_arrays(time, np.ones(108))
    flat = ph.detrend(curve, np.zeros(108, dtype=bool))
    assert len(flat) == 100  # the eight lonely cadences at day 50 are gone
    with pytest.raises(InputError, match="no cadence has ten unmasked neighbours"):
        ph.detrend(curve, np.ones(108, dtype=bool))


def test_scatter_measures_the_white_noise_under_trends_and_transits(star):
    truth = star(noise=0.001, wave=0.02)
    measured = ph.scatter(ph.normalise(truth.observe(seed=2)))
    # The MAD of 18,700 differences: standard error about 1.2 / sqrt(18,700) x sqrt(2) (neighbours) = 1.2 %.
    assert measured == pytest.approx(0.001, rel=0.05)


def test_a_light_curve_refuses_broken_arrays():
    good = ph.from_arrays([1.0, 2.0], [1.0, 1.0])
    with pytest.raises(InputError, match="times must increase"):
        replace(good, time=np.array([2.0, 1.0]))
    with pytest.raises(InputError, match="must be finite"):
        replace(good, flux=np.array([1.0, np.nan]))
    with pytest.raises(InputError, match=r"flux must have shape \(2,\)"):
        replace(good, flux=np.ones(3))
