"""Twisted SMC with the exact denoiser against quadrature, family by family."""

from __future__ import annotations

import pytest
import torch
from exact_cases import FAMILIES, drawn, errors, observation, target

# 4,000 exact draws: a mean is off by .016 sd, the worst of ten by .03; sd by .011 and .03; total variation of 30 bins about .035.


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("d", [1, 2, 10])
def test_family(name, d):
    out = drawn(target(name, d), d)
    mean, sd, variation, log_z = errors(name, out.theta[:, 0], observation(d))
    assert mean < 0.1
    # A spike with a slab, and two modes of which one is rare, have a far noisier sd than a Gaussian: it goes with the number of
    # particles in the rare one. This is the worst of d parameters.
    assert sd < (0.2 if name in ("horseshoe", "far_modes") else 0.06)
    assert variation < 0.07
    assert out.figures["duplicates"][0] < 0.05
    off, error = abs(out.figures["log_z"][0] - log_z), out.figures["log_z_error"][0]
    assert off < 4 * error
    assert error < 0.1


@pytest.mark.parametrize("name", ["laplace", "half_normal", "box"])
def test_twenty_dimensions(name):
    out = drawn(target(name, 20), 20)
    mean, sd, variation, _ = errors(name, out.theta[:, 0], observation(20))
    assert mean < 0.1
    assert sd < 0.06
    assert variation < 0.07
    assert out.figures["duplicates"][0] < 0.05


def test_no_spike_at_a_kink():
    """Version 0.1.0 left many draws within .02 of the kink of a Laplace prior."""
    out = drawn(target("laplace", 2), 2, n=8_000)
    x = observation(2)
    for i in range(2):
        _, _, _, t, cdf = _marginal("laplace", float(x[i]))
        exact = float(cdf[torch.searchsorted(t, torch.tensor(0.32))] - cdf[torch.searchsorted(t, torch.tensor(0.28))])
        share = float(((out.theta[:, 0, i] - 0.3).abs() < 0.02).float().mean())
        assert share == pytest.approx(exact, abs=4 * (exact / 8_000) ** 0.5)


def _marginal(name, x):
    from exact_cases import marginal

    return marginal(name, x)
