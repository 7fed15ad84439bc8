from __future__ import annotations

import numpy as np
import pytest
import torch

from reprior_transits.summaries import SUMMARIES, summaries


def box(centre=0.1, half=0.2, depth=0.01, noise=0.0, seed=0):
    """A box-shaped dip; centre and half-length in half-widths of the window."""
    time = torch.linspace(-1, 1, 128)
    x = 1 - depth * ((time - centre).abs() < half)
    return x + noise * torch.randn(128, generator=torch.Generator().manual_seed(seed))


def named(x):
    return dict(zip(SUMMARIES, summaries(x).tolist(), strict=True))


def test_a_box_has_its_depth_middle_and_duration():
    found = named(box())
    assert found["depth"] == pytest.approx(np.arcsinh(10), rel=1e-4)
    assert found["middle"] == pytest.approx(0.1, abs=0.01)
    assert np.expm1(found["full"]) == pytest.approx(0.4 * 127 / 2, abs=2)
    assert found["spread"] == pytest.approx(0.4 / 12**0.5, rel=0.06)


def test_noise_is_its_standard_deviation_whatever_the_dip():
    # The median of 127 differences is known to about 12 %; the two edges of the dip hardly move it.
    flat, deep = (named(box(depth=d, noise=0.001, seed=3))["noise"] for d in (0.0, 0.03))
    assert flat == pytest.approx(0.0, abs=0.4)
    assert deep == pytest.approx(flat, abs=0.1)


def test_missing_points_count_for_nothing():
    x = box()
    x[100:] = torch.nan
    assert named(x)["middle"] == pytest.approx(named(box())["middle"], abs=1e-6)
    assert named(x)["depth"] == pytest.approx(named(box())["depth"], abs=1e-6)
    batch = torch.stack([x, box(), torch.full((128,), torch.nan)])
    assert summaries(batch).isfinite().all()
    assert torch.equal(summaries(batch)[0], summaries(x))
