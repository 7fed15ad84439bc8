"""Samplers on the exact denoiser of a Gaussian: order of convergence, variance, the paper sampler's bias."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from exact import GaussianBase
from torch import Tensor

from reprior.diffusion.denoiser import Denoiser
from reprior.diffusion.sampler import PAPER_SAMPLER, Sampler, _langevin, initial_state, run
from reprior.errors import InputError

N = 40_000
# Standard errors: sd / sqrt(2 N) = 0.35 % of a sample standard deviation, sd / sqrt(N) = 0.5 % of a mean.
SD_ERROR = 1 / math.sqrt(2 * N)
MEAN_ERROR = 1 / math.sqrt(N)


def bound(v: float, x: Tensor | None = None, s_min: float = 1e-3) -> Denoiser:
    """The denoiser of one parameter with prior variance 1 and posterior variance v: theta | x ~ N((1 - v) x, v)."""
    base = GaussianBase(torch.eye(1), v / (1 - v), s_min=s_min)
    return base.condition(torch.full((1, 1), 0.5) if x is None else x)


def draws(denoiser: Denoiser, sampler: Sampler, seed: int = 1) -> Tensor:
    return run(denoiser, N, sampler, torch.Generator().manual_seed(seed))[:, 0, 0].double()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- the exact denoiser itself ------------------------------------------------------------------------------


def test_score_is_that_of_the_noisy_gaussian():
    v, x = 0.2, torch.tensor([[0.5], [-1.0]], dtype=torch.float64)
    denoiser = bound(v, x)
    z = torch.randn(7, 2, 1, generator=generator(), dtype=torch.float64)
    for s in (1e-2, 0.4, 30.0):
        score = denoiser.score(z, torch.tensor(s, dtype=torch.float64))
        assert torch.allclose(score, ((1 - v) * x - z) / (v + s**2), rtol=1e-8, atol=1e-10)


# --- deterministic samplers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("v", [0.3, 0.01])
@pytest.mark.parametrize("kind", ["multistep", "heun"])
def test_ode_samplers_are_second_order(kind, v):
    # The ODE maps z at s to m + sqrt(v / (v + s^2)) (z - m). In double precision only the steps matter.
    denoiser = bound(v, torch.full((1, 1), 0.5, dtype=torch.float64), s_min=1e-4)
    z = torch.linspace(-80, 80, 9, dtype=torch.float64).reshape(-1, 1, 1)
    m = 0.5 * (1 - v)
    exact = m + math.sqrt(v / (v + denoiser.s_max**2)) * (z - m)
    errors = []
    for steps in (48, 96, 192):
        out = run(denoiser, len(z), Sampler(kind=kind, steps=steps), generator(), z=z)
        errors.append(float((out - exact).abs().max()) / math.sqrt(v))
    orders = [math.log2(a / b) for a, b in pairwise(errors)]
    assert all(1.9 < order < 2.4 for order in orders), (errors, orders)
    assert errors[0] < 0.05  # of a standard deviation, for states two standard deviations out


def test_default_sampler_is_accurate_on_narrow_and_wide_posteriors():
    # The steps' own error is 0.5 to 0.9 % of the standard deviation (with rho = 5 it would be up to 4.3 %).
    for v in (0.0004, 0.01, 0.3):
        theta = draws(bound(v, s_min=2e-3), Sampler())
        assert float(theta.std()) == pytest.approx(math.sqrt(v), rel=0.01 + 4 * SD_ERROR)
        assert abs(float(theta.mean()) - 0.5 * (1 - v)) < 4 * MEAN_ERROR * math.sqrt(v) + 0.001 * math.sqrt(v)


def test_correlated_posterior_has_its_covariance():
    cov = torch.tensor([[1.0, 0.8], [0.8, 1.0]])
    base = GaussianBase(cov, 0.3)
    x = torch.tensor([[0.7, -0.2]])
    theta = run(base.condition(x), N, Sampler(steps=64), generator(3))[:, 0].double()
    error = torch.cov(theta.T) - base.cov
    # Standard error of a covariance: at most sqrt(2 / N) of the variance; 1 % for the steps.
    assert float(error.abs().max() / base.cov.max()) < 4 * math.sqrt(2 / N) + 0.01
    spread = base.cov.diagonal().sqrt()
    assert float(((theta.mean(0) - base.posterior_mean(x)[0]) / spread).abs().max()) < 4 * MEAN_ERROR + 0.001


def test_ode_needs_no_randomness_after_the_start_and_begins_where_told():
    denoiser = bound(0.2)
    z = initial_state(denoiser, 50, 3.0, generator(4))
    first = run(denoiser, 50, Sampler(), generator(5), z=z, s_start=3.0)
    second = run(denoiser, 50, Sampler(), generator(6), z=z, s_start=3.0)
    assert torch.equal(first, second)
    m, v = 0.4, 0.2
    exact = m + math.sqrt(v / (v + 9.0)) * (z - m)
    assert float((first - exact).abs().max()) < 0.01


def test_every_observation_gets_its_own_posterior():
    x = torch.tensor([[-2.0], [0.0], [2.0]])
    theta = run(bound(0.1, x), 2_000, Sampler(), generator(2))
    assert theta.shape == (2_000, 3, 1)
    # Standard error of a mean of 2,000: 0.022 standard deviations.
    assert torch.allclose(theta.mean(0), 0.9 * x, atol=4 * math.sqrt(0.1 / 2_000))


# --- stochastic samplers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("eta", [0.5, 1.0])
def test_fresh_noise_keeps_the_variance_right(eta):
    # The error of the steps falls with their number: 2 to 3 % at 32, 0.6 % at most at 128.
    v = 0.01
    theta = draws(bound(v), Sampler(steps=128, eta=eta))
    assert float(theta.std()) == pytest.approx(0.1, rel=0.006 + 4 * SD_ERROR)
    assert abs(float(theta.mean()) - 0.5 * (1 - v)) < 5 * MEAN_ERROR * 0.1


def test_fresh_noise_is_exact_where_the_denoised_mean_is_constant():
    # theta = 0.25 for sure: z stays N(0.25, s^2), and the last step, which adds no noise, makes all draws theta.
    class Point(Denoiser):
        dim, observations, noise, s_min, s_max = 1, 1, "scalar", 1e-3, 40.0
        x = torch.zeros(1, 1)

        def __init__(self):
            self.seen: dict[float, float] = {}

        def mean(self, z: Tensor, s: Tensor) -> Tensor:
            if len(z) > 1:
                self.seen[float(s)] = float((z - 0.25).std() / s)
            return torch.full_like(z, 0.25)

    point = Point()
    assert torch.equal(draws(point, Sampler(steps=8, eta=1.0)), torch.full((N,), 0.25).double())
    assert len(point.seen) == 8
    for s, ratio in point.seen.items():
        assert ratio == pytest.approx(1, abs=5 * SD_ERROR), s


@pytest.mark.parametrize(("sd", "inflation"), [(0.02, 0.32), (0.05, 0.14), (0.3, 0.04)])
def test_paper_sampler_inflates_narrow_posteriors(sd, inflation):
    # 25 Euler-Maruyama steps with the exact score; the figures are rounded to 1 %, plus sampling error.
    theta = draws(bound(sd**2), PAPER_SAMPLER)
    assert float(theta.std()) / sd - 1 == pytest.approx(inflation, abs=0.012 + 4 * SD_ERROR)


def test_euler_maruyama_converges_to_the_posterior():
    samplers = [Sampler("euler_maruyama", steps=n) for n in (25, 100)]
    narrow = [float(draws(bound(0.05**2), sampler).std()) / 0.05 - 1 for sampler in samplers]
    # First order: four times the steps, a quarter of the error.
    assert narrow[1] == pytest.approx(narrow[0] / 4, abs=4 * SD_ERROR)


# --- Langevin corrections -----------------------------------------------------------------------------------


def test_langevin_steps_leave_the_noisy_posterior_invariant():
    # On N(m, V) a step tau has the stationary variance V / (1 - tau / 2V): 0.25 % above V for tau = V / 200.
    v, s = 0.05, torch.tensor(0.4)
    denoiser, total = bound(v), v + 0.16
    z = 0.475 + math.sqrt(total) * torch.randn(N, 1, 1, generator=generator(7))
    moved = _langevin(denoiser, z, s, torch.tensor(total / 200), 200, generator(8))
    assert float(moved.std()) == pytest.approx(math.sqrt(total), rel=0.00125 + 4 * SD_ERROR)
    assert abs(float(moved.mean()) - 0.475) < 4 * MEAN_ERROR * math.sqrt(total)
    # ... and they do move: after one relaxation time e^-1 of the start is left.
    left = torch.corrcoef(torch.stack([z[:, 0, 0], moved[:, 0, 0]]))[0, 1]
    assert float(left) == pytest.approx(math.exp(-1), abs=0.03)


def test_langevin_steps_repair_a_wrong_start():
    denoiser, s = bound(0.05), torch.tensor(0.4)
    z = torch.full((N, 1, 1), 2.0)
    moved = _langevin(denoiser, z, s, torch.tensor(0.21 / 20), 200, generator(9))
    # 200 steps of V / 20 leave e^-10 of the start; the stationary variance is 2.5 % too large.
    assert float(moved.mean()) == pytest.approx(0.475, abs=5 * MEAN_ERROR * 0.46)
    assert float(moved.var()) == pytest.approx(0.21, rel=0.026 + 8 * SD_ERROR)


@pytest.mark.parametrize("kind", ["multistep", "heun", "euler_maruyama"])
@pytest.mark.parametrize("sd", [0.02, 0.5])
def test_corrected_samplers_keep_the_posterior(kind, sd):
    # Steps of finite size cost 2.8 % at most (measured, euler_maruyama at sd 0.02; 0.1 to 2.0 % elsewhere). Extrapolating
    # the denoised mean across the fresh noise of the corrections would cost multistep 9 % (rho = 5: 12 to 24 %).
    steps = 100 if kind == "euler_maruyama" else 32
    theta = draws(bound(sd**2, s_min=2e-3), Sampler(kind=kind, steps=steps, corrections=4))
    assert float(theta.std()) == pytest.approx(sd, rel=0.028 + 4 * SD_ERROR)
    assert abs(float(theta.mean()) - 0.5 * (1 - sd**2)) < 5 * MEAN_ERROR * sd + 0.01 * sd


# --- the start, repeatability, settings ---------------------------------------------------------------------


def test_initial_state_is_gaussian_about_the_posterior_mean():
    x = torch.tensor([[-20.0], [20.0]])  # far out, so that the centre is visible beside s = 40
    z = initial_state(bound(0.1, x), N, 40.0, generator(10))
    assert z.shape == (N, 2, 1)
    assert torch.allclose(z.mean(0), 0.9 * x, atol=4 * 40 * MEAN_ERROR)
    assert torch.allclose(z.std(0), torch.full((2, 1), 40.0), rtol=4 * SD_ERROR)


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(eta=1.0), Sampler("heun"), PAPER_SAMPLER])
def test_the_same_generator_gives_the_same_draws(sampler):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one, two, other = (run(bound(0.1), 20, sampler, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("kind", ["multistep", "heun", "euler_maruyama"])
def test_every_step_is_reported(kind):
    seen: list[int] = []
    run(bound(0.1), 2, Sampler(kind, steps=7), generator(), on_step=seen.append)
    assert seen == list(range(7))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "rk4"}, "kind 'rk4' is unknown"),
        ({"steps": 1}, "at least 2; got 1"),
        ({"rho": 0.0}, "rho must be positive"),
        ({"eta": 1.5}, r"eta must lie in \[0, 1\]; got 1.5"),
        ({"corrections": -1}, "corrections must be 0 or more; got -1"),
    ],
)
def test_settings_are_checked(arguments, message):
    with pytest.raises(InputError, match=message):
        Sampler(**arguments)
