from __future__ import annotations

import pytest
import torch

from reprior.errors import InputError
from reprior_transits.exact import ExactLikelihood, exact_steps
from reprior_transits.exact_run import stored_exact
from reprior_transits.transit import TransitSimulator
from reprior_transits.transit_prior import MEAN, STD

TRUTH = torch.tensor([0.12, 9.0, 88.0, 3.5, 0.0, 0.35, 0.18, 0.001])


def windows(n=2):
    x = TransitSimulator().simulate(TRUTH.repeat(n, 1), seed=1)
    x[0, 70:] = torch.nan
    return x


def direct(theta, x):
    """log L by a plain sum over t0 and sigma, on finer grids, with the simulator's own light curves."""
    t0, sigma = torch.arange(-0.015, 0.01501, 0.0001), torch.linspace(0.0003, 0.0024, 300, dtype=torch.float64)
    many = theta.repeat(len(t0), 1)
    many[:, 4] = t0
    here = ~torch.isnan(x)
    squares = (x[here].double() - TransitSimulator().flux(many)[:, here]).square().sum(1, keepdim=True)
    log_f = -squares / (2 * sigma**2) - here.sum() * sigma.log() - ((sigma - MEAN[7]) / STD[7]) ** 2 / 2
    return float(torch.logsumexp((log_f - (t0.unsqueeze(1) / STD[4]) ** 2 / 2).flatten(), 0))


def test_the_likelihood_is_the_integral_over_midpoint_and_noise():
    x = windows()
    others = TRUTH.repeat(3, 1)
    others[1, 0], others[2, 1] = 0.123, 9.4
    found = ExactLikelihood(x, 0.5)(others, 2)
    for n in range(2):
        expected = torch.tensor([direct(theta, x[n]) for theta in others], dtype=torch.float64)
        # Equal up to a constant; grids and float32 sums of squares leave some hundredths.
        gap = found[:, n] - expected
        assert float((gap - gap[0]).abs().max()) < 0.05
    assert ExactLikelihood(x, 0.5)(torch.tensor([[-0.1, *TRUTH[1:].tolist()]]), 1)[0, 0] == -torch.inf


def test_samples_narrow_about_the_truth_and_are_kept(tmp_path):
    x = windows(3)
    steps = stored_exact(x, 0.5, tmp_path, samples=100)
    width = [float(theta[:, 0].std()) for theta in steps]
    assert width[2] < width[0] < 0.02
    # A posterior of sd w from 100 samples: the truth within 4 w.
    assert abs(float(steps[2][:, 0].median()) - 0.12) < 4 * width[2]
    assert (steps[2][:, 2] <= 90).all()
    again = stored_exact(x, 0.5, tmp_path, samples=100)
    assert all(torch.equal(a, b) for a, b in zip(steps, again, strict=True))


def test_shapes_are_checked():
    with pytest.raises(InputError, match=r"points even; got \(3, 127\)"):
        exact_steps(torch.ones(3, 127), 0.5)
