from __future__ import annotations

import numpy as np
import pytest
import torch

from reprior_transits.profile import OFFSETS, PROFILE, profile

TIME = torch.linspace(-1, 1, 128)
DEPTH, MIDDLE, HALF = OFFSETS, OFFSETS + 1, OFFSETS + 2


def dip(centre=0.1, half=0.2, depth=0.01, noise=0.0, seed=0):
    """A dip with sloping sides, half as deep at `half` from its centre; lengths in half-widths of the window."""
    shape = ((half - (TIME - centre).abs()) / (0.2 * half) + 0.5).clamp(0, 1)
    return 1 - depth * shape + noise * torch.randn(128, generator=torch.Generator().manual_seed(seed))


def test_a_dip_has_its_depth_middle_and_duration():
    found = profile(dip())
    assert found.shape == (PROFILE,)
    assert float(found[DEPTH]) == pytest.approx(np.arcsinh(10), rel=1e-3)
    assert float(found[MIDDLE]) == pytest.approx(0.1, abs=1e-3)
    # A count of points: right to one of 25.
    assert float(found[HALF].exp()) == pytest.approx(0.2, abs=0.009)


def test_the_profile_is_the_shape_alone():
    p = profile(dip())[:OFFSETS]
    grid = 1.6 / (OFFSETS - 1) * torch.arange(OFFSETS)
    assert p[grid < 0.8] == pytest.approx(1.0, abs=0.02)
    assert p[grid > 1.25].abs().max() < 0.02
    # Moved by a third of a bin, twice as deep: the same profile. What is left is the bins' own grain on the slopes.
    other = profile(dip(centre=0.1 + 2 / 127 / 3, depth=0.02))[:OFFSETS]
    assert other == pytest.approx(p, abs=0.06)


def test_the_midpoint_is_found_below_a_bin_in_noise():
    centres = 0.3 * torch.rand(100, generator=torch.Generator().manual_seed(0)) - 0.15
    x = torch.stack([dip(float(c), noise=0.001, seed=i) for i, c in enumerate(centres)])
    error = profile(x)[:, MIDDLE] - centres
    # About 2 x 2.5 points on the slopes, 0.0025 of a half-width of error each point at ten times the noise: 0.0018.
    assert float(error.square().mean().sqrt()) < 0.004


def test_missing_points_count_for_nothing():
    x = dip()
    x[100:] = torch.nan
    assert profile(x)[:HALF] == pytest.approx(profile(dip())[:HALF], abs=1e-5)
    batch = torch.stack([x, dip(depth=0.0), torch.full((128,), torch.nan)])
    assert profile(batch).isfinite().all()
    assert torch.allclose(profile(batch)[0], profile(x), atol=1e-6)
