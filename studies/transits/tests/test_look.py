"""Windows that look alike: a selection on x leaves p(theta | x) as it is."""

import pytest
import torch

import reprior_transits.base as module
from reprior import priors
from reprior.errors import InputError
from reprior_transits.base import BaseSettings, simulate_windows
from reprior_transits.look import Look
from reprior_transits.targets import TARGETS
from reprior_transits.transit import random_gaps
from reprior_transits.transit_prior import gaussian_prior

LOOK = Look(depth=(0.005, 0.02), duration=(0.05, 0.1), noise=(0.0005, 0.0015), middle=(-0.05, 0.05))
SETTINGS = BaseSettings(look=LOOK)


def test_a_window_looks_as_its_parameters_say():
    theta = torch.tensor([[0.1, 10.0, 89.0, 3.0, 0.0, 0.35, 0.18, 0.001]]).repeat(5, 1)
    theta[1, 0], theta[2, 3], theta[3, 4], theta[4, 7] = 0.03, 8.0, 0.2, 0.004  # shallow, long, late, noisy
    x = SETTINGS.simulator.simulate(theta, 0)
    assert LOOK.seen(x, 0.5).tolist() == [True, False, False, False, False]
    assert LOOK.possible(theta).tolist() == [True, False, False, False, False]
    x[0, :40] = torch.nan  # a third of the window
    assert not LOOK.seen(x, 0.5)[0]


def test_draws_that_are_not_simulated_hardly_ever_look_so():
    theta = priors.sample(gaussian_prior(), 20_000, 0)
    x = SETTINGS.simulator.simulate(theta, 1)
    good = x.isfinite().all(1)
    theta, x = theta[good], x[good].masked_fill(random_gaps(int(good.sum()), 128, 2), torch.nan)
    seen, possible = LOOK.seen(x, 0.5), LOOK.possible(theta)
    assert int(seen.sum()) > 300
    assert float((seen & ~possible).sum() / seen.sum()) < 0.05
    assert float(possible.float().mean()) < 0.6


def test_the_windows_kept_are_those_of_the_prior_that_look_so(monkeypatch):
    monkeypatch.setattr(module, "DRAWS", 10_000)
    some = simulate_windows(SETTINGS, 600, seed=3)
    assert len(some) == 600
    # By hand: all draws of the prior, and those kept that look so.
    theta = priors.sample(gaussian_prior(), 40_000, 4)
    x = SETTINGS.simulator.simulate(theta, 5)
    good = x.isfinite().all(1)
    theta, x = theta[good], x[good].masked_fill(random_gaps(int(good.sum()), 128, 6), torch.nan)
    theta = theta[LOOK.seen(x, 0.5)]
    error = theta.std(0) * (1 / len(theta) + 1 / len(some)) ** 0.5
    assert ((theta.mean(0) - some.theta.mean(0)).abs() < 4 * error).all()
    ratio = some.theta.std(0) / theta.std(0)
    assert ((ratio - 1).abs() < 4 * (0.5 / len(theta) + 0.5 / len(some)) ** 0.5 * 1.5).all()


def test_few_draws_of_the_prior_look_like_gj_436():
    look, settings = TARGETS["gj-436"].look, BaseSettings(0.1)
    assert look is not None
    theta = priors.sample(gaussian_prior(), 200_000, 7)
    theta = theta[look.possible(theta)]
    assert len(theta) < 0.03 * 200_000
    x = settings.simulator.simulate(theta, 8)
    x = x.masked_fill(random_gaps(len(x), 128, 9), torch.nan)
    # 0.14 %: 280 +- 17.
    assert 200 < int(look.seen(x, 0.1).sum()) < 400


def test_a_look_that_no_draw_has_is_an_error(monkeypatch):
    monkeypatch.setattr(module, "ROUNDS", 2)
    monkeypatch.setattr(module, "DRAWS", 1_000)
    never = Look(depth=(0.5, 0.6), duration=(0.001, 0.002), noise=(0.0005, 0.0015), middle=(-0.05, 0.05))
    with pytest.raises(InputError, match=r"of 2000 draws of the prior only 0 look like"):
        simulate_windows(BaseSettings(look=never), 10, seed=0)


def test_bad_ranges_are_refused_and_names_differ():
    with pytest.raises(InputError, match=r"depth must be \(lowest, highest\), not negative; got \(0.02, 0.01\)"):
        Look((0.02, 0.01), (0.05, 0.1), (0.0005, 0.0015), (-0.05, 0.05))
    look = TARGETS["gj-436"].look
    name = BaseSettings(0.1, look=look).name
    assert name == "base-0.1d-depth0.004to0.01-duration0.02to0.045-noise0.0003to0.0009-middle-0.01to0.01"
