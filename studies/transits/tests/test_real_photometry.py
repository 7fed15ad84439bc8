"""The chain on real TESS data, read from the folder beside the repository (which holds no data)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from reprior_transits.photometry import detrend, normalise, scatter
from reprior_transits.targets import target
from reprior_transits.windows import cut_windows

TESS = Path(__file__).resolve().parents[4] / "shared" / "tess"
FILES = {
    "wasp-126": "wasp126_tess_s01_120s.csv",
    "wasp-39": "wasp39_tess_s51_120s.csv",
    "gj-436": "gj436_tess_s22_s49_120s_windows.csv",
}
pytestmark = pytest.mark.skipif(
    not TESS.is_dir(), reason=f"no TESS light curves at {TESS}: they are kept beside the repository, not in it"
)


@cache
def processed(name):
    curve = target(name).read(TESS / FILES[name])
    return curve, target(name).process(curve)


@pytest.mark.parametrize(
    ("name", "count", "depth", "noise"),
    [
        # Depth and 120 s scatter as stated in the notes beside the data, with the spread of one transit.
        ("wasp-126", 8, (0.0066, 0.0073), (0.0012, 0.0014)),
        ("wasp-39", 5, (0.0205, 0.0235), (0.0022, 0.0030)),
        ("gj-436", 14, (0.0059, 0.0069), (0.0005, 0.0006)),
    ],
)
def test_windows_depth_and_scatter(name, count, depth, noise):
    _, photometry = processed(name)
    windows = photometry.windows
    assert len(windows) == count
    assert windows.rejected == ()
    assert depth[0] < np.median(windows.depth) < depth[1]
    assert noise[0] < scatter(photometry.curve) < noise[1]
    assert windows.time[-1] == pytest.approx(target(name).windows.half_width * (1 - 1 / 128))


@pytest.mark.parametrize("name", FILES)
def test_the_period_agrees_with_the_published_one(name):
    found = processed(name)[1].ephemeris
    # Few mid-times, so Student's t with 2 to 12 degrees of freedom: 4 stated errors.
    assert abs(found.period - target(name).reference.period) < 4 * found.period_error
    assert found.period_error < 5e-4


def test_the_mid_times_of_gj_436_are_counted_over_two_years():
    windows = processed("gj-436")[1].windows
    assert windows.cycles.max() - windows.cycles.min() == 288  # (2663.759 - 1902.316) / 2.643898
    assert windows.found.all()
    early, late = windows.missing[windows.mid_times < 2600], windows.missing[windows.mid_times > 2600]
    assert late[:, :10].all()  # the second sector starts 0.077 d before each mid-transit
    assert late[:, 18:120].mean() < 0.02
    assert early[:, 2:120].mean() < 0.02  # single cadences


def test_the_first_window_of_wasp_39_lacks_its_egress():
    windows = processed("wasp-39")[1].windows
    assert windows.mid_times == pytest.approx([2694.284, 2698.339, 2702.395, 2706.450, 2714.561], abs=0.003)
    assert windows.found.tolist() == [False, True, True, True, True]
    assert windows.missing[0, 68:].all()
    assert not windows.missing[0, :60].any()


def test_fits_and_csv_give_the_same_light_curve():
    for name, file in (
        ("wasp-126", "tess2018206045859-s0001-0000000025155310-0120-s_lc.fits"),
        ("wasp-39", "WASP-39b_TESS_Sector51_CorrectedLC.fits"),
    ):
        csv, fits = processed(name)[0], target(name).read(TESS / "original" / file)
        assert len(csv) == len(fits)
        np.testing.assert_allclose(csv.time, fits.time, rtol=0, atol=1e-6)
        np.testing.assert_allclose(csv.flux, fits.flux, rtol=1e-6)
        assert np.array_equal(csv.sector, fits.sector)


def test_without_the_mask_detrending_eats_the_transit_of_wasp_126():
    curve, photometry = processed("wasp-126")
    level = normalise(curve)
    eaten = detrend(level, np.zeros(len(level), dtype=bool), window=0.25)
    kept = np.median(photometry.windows.depth)
    assert np.median(cut_windows(eaten, photometry.ephemeris).depth) < 0.7 * kept
