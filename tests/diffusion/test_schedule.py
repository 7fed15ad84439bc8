"""The VP schedule's identities, in double and at the edge of single precision, and the noise grid."""

from __future__ import annotations

import math

import pytest
import torch

from reprior.diffusion.schedule import VP, noise_grid
from reprior.errors import InputError

TIMES = torch.logspace(-5, 0, 41, dtype=torch.float64)
SCHEDULES = [VP(), VP(beta_min=0.01, beta_max=20.0)]


@pytest.mark.parametrize("vp", SCHEDULES)
def test_alpha_and_sigma_are_on_the_unit_circle(vp):
    total = vp.alpha(TIMES) ** 2 + vp.sigma(TIMES) ** 2
    assert torch.allclose(total, torch.ones_like(TIMES), rtol=0, atol=1e-14)
    assert torch.allclose(vp.s(TIMES), vp.sigma(TIMES) / vp.alpha(TIMES), rtol=1e-12)


@pytest.mark.parametrize("vp", SCHEDULES)
def test_alpha_is_the_closed_form(vp):
    b0, b1 = vp.beta_min, vp.beta_max
    exact = torch.exp(-(TIMES**2) * (b1 - b0) / 4 - TIMES * b0 / 2)
    assert torch.allclose(vp.alpha(TIMES), exact, rtol=1e-14)


@pytest.mark.parametrize("vp", SCHEDULES)
def test_time_and_noise_are_inverse(vp):
    assert torch.allclose(vp.t(vp.s(TIMES)), TIMES, rtol=1e-11, atol=0)


@pytest.mark.parametrize("vp", SCHEDULES)
def test_beta_is_the_rate_of_log_one_plus_s_squared(vp):
    t = TIMES.clone().requires_grad_(True)
    (rate,) = torch.autograd.grad(torch.log1p(vp.s(t) ** 2).sum(), t)
    assert torch.allclose(rate, vp.beta(TIMES), rtol=1e-9)


@pytest.mark.parametrize("vp", SCHEDULES)
def test_float32_is_accurate_down_to_t_min(vp):
    # Every function is a chain of a few float32 operations of relative error 6e-8 each; sqrt(1 - alpha^2) in
    # float32 would be off by several percent at t_min (checked last: this test can tell the two apart).
    single = TIMES.float()
    exact = single.double()
    for name in ("alpha", "sigma", "s"):
        one, two = getattr(vp, name)(single), getattr(vp, name)(exact)
        assert float((one.double() / two - 1).abs().max()) < 1e-6, name
    assert float((vp.t(vp.s(single)).double() / exact - 1).abs().max()) < 2e-6
    naive = torch.sqrt(1 - vp.alpha(single[:1]) ** 2)
    assert float((naive.double() / vp.sigma(exact[:1]) - 1).abs()) > 0.01


def test_level_is_s_as_a_float():
    vp = VP()
    for t in (vp.t_min, 0.1, 1.0):
        assert vp.level(t) == pytest.approx(float(vp.s(torch.tensor(t, dtype=torch.float64))), rel=1e-12)
    assert vp.level(1.0) == pytest.approx(math.sqrt(math.exp(5.05) - 1), rel=1e-12)


@pytest.mark.parametrize(
    "arguments", [{"beta_min": 0.0}, {"beta_min": 11.0}, {"t_min": 0.0}, {"t_min": 1.0}, {"t_max": 1.5}]
)
def test_schedules_that_make_no_sense_are_refused(arguments):
    with pytest.raises(InputError, match="VP needs"):
        VP(**arguments)


@pytest.mark.parametrize("rho", [1.0, 5.0])
def test_noise_grid_has_equal_steps_in_the_root(rho):
    grid = noise_grid(40.0, 0.002, 17, rho)
    assert grid.dtype == torch.float64
    assert float(grid[0]) == pytest.approx(40.0)
    assert float(grid[-1]) == pytest.approx(0.002, rel=1e-9)
    steps = (grid ** (1 / rho)).diff()
    assert torch.allclose(steps, steps[0].expand(16), rtol=1e-9)
    assert bool((steps < 0).all())


def test_noise_grid_needs_two_steps():
    with pytest.raises(InputError, match="at least 2 steps; got 1"):
        noise_grid(40.0, 0.002, 1, 5.0)
