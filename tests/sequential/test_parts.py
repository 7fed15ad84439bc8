"""The parts of `accumulate`: the base's relative log-density, the fit through it, and the Metropolis moves."""

from __future__ import annotations

import torch
from exact import exact_posterior, gaussian_posterior
from torch.distributions import MultivariateNormal

from reprior import priors
from reprior.sequential.density import RelativeDensity
from reprior.sequential.moves import difference_moves
from reprior.sequential.surrogate import CarriedRatio, Frame, choose, fit
from reprior.standardizer import Standardizer

C = 0.3
POSTERIOR, PRIOR = gaussian_posterior(dim=3, c=C, rho=0.4, noise="diagonal")
X = torch.tensor([0.5, 0.3, -0.7])
EXACT = exact_posterior(PRIOR, X, C)
UNIT = Standardizer(torch.zeros(2), torch.ones(2))


def banana(z):
    """A bent log-density."""
    return -0.5 * (z[:, 0] ** 2 + 4 * (z[:, 1] - 0.3 * z[:, 0] ** 2) ** 2)


def banana_points(n, seed=0):
    a, b = torch.randn(2, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return 1.3 * torch.stack([a, 0.5 * b + 0.3 * a**2], 1)


def test_the_relative_density_is_the_posterior_up_to_a_constant():
    draws = POSTERIOR.sample((4_000,), X, seed=0).double()
    density = RelativeDensity(POSTERIOR.condition(X.unsqueeze(0)), draws.mean(0), torch.cov(draws.T))
    theta = priors.sample(EXACT, 200, 0)
    gap = density(theta) - EXACT.log_prob(theta).double()
    # 4,000 draws know the end of the flow to 2 %, which its noise of 4 sd hides; six steps of order four do the rest.
    assert float(gap.std()) < 0.03
    # Without the last noise undone the curvature would be 4 % too small: the slope of the gap shows it.
    slope = float(torch.cov(torch.stack([gap, EXACT.log_prob(theta).double()]))[0, 1] / EXACT.log_prob(theta).var())
    assert abs(slope) < 0.015


def test_a_bent_density_needs_bumps_and_they_fit_it():
    z = banana_points(600)
    values = banana(z)
    generator = torch.Generator().manual_seed(0)
    frame = Frame.over(z, generator)
    width, ridge = choose(frame, z, values, 0.1, generator)
    assert ridge < torch.inf
    new = banana_points(300, seed=1)
    error = frame.design(new, width) @ fit(frame, z, values, width, ridge, 0.1) - banana(new)
    plain = frame.design(new, width) @ fit(frame, z, values, width, torch.inf, 0.1) - banana(new)
    # The values have a standard deviation of about 2; single points far out may be off.
    assert float(error.abs().quantile(0.9)) < 0.1
    assert float(plain.abs().quantile(0.9)) > 5 * float(error.abs().quantile(0.9))


def test_a_quadratic_needs_none_and_coefficients_add():
    z = banana_points(300)
    generator = torch.Generator().manual_seed(0)
    frame = Frame.over(z, generator)
    gauss = [MultivariateNormal(torch.ones(2) * k, torch.eye(2) * (1 + k)).log_prob(z.float()).double() for k in (0, 1)]
    assert choose(frame, z, gauss[0], 0.0, generator)[1] == torch.inf
    both = sum((fit(frame, z, one, 1.0, torch.inf, 0.0) for one in gauss), torch.zeros(()))
    ratio = CarriedRatio.of(UNIT, torch.tensor([0, 1]), frame, 1.0, both)
    assert len(ratio.bumps) == 0
    assert torch.allclose(ratio(z.float()).double(), gauss[0] + gauss[1], atol=1e-3)


def test_no_fit_grows_far_away():
    z = banana_points(400)
    generator = torch.Generator().manual_seed(0)
    frame = Frame.over(z, generator)
    rising = -banana(z)  # grows on all sides
    ratio = CarriedRatio.of(UNIT, torch.tensor([0, 1]), frame, 1.0, fit(frame, z, rising, 1.0, 1e-7, 0.1))
    far = 1e4 * torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 1.0], [1.0, -1.0]])
    assert float(ratio(far).max()) < -1e3


def test_moves_take_a_population_to_the_target_and_keep_it_there():
    target = MultivariateNormal(torch.tensor([1.0, -2.0]), torch.tensor([[1.0, 0.6], [0.6, 0.5]]))
    start = torch.randn(2_000, 2, generator=torch.Generator().manual_seed(0))
    moved, accepted = difference_moves(target.log_prob, start, 60, torch.Generator().manual_seed(1))
    sd = target.stddev
    # 2,000 nearly independent members: four standard errors.
    assert float(((moved.mean(0) - target.mean) / sd).abs().max()) < 0.09
    assert float((moved.std(0) / sd - 1).abs().max()) < 0.065
    assert 0.15 < accepted < 0.8


def test_moves_stay_where_the_target_has_mass():
    start = torch.rand(500, 1, generator=torch.Generator().manual_seed(0))

    def log_f(theta):
        inside = (theta[:, 0] > 0) & (theta[:, 0] < 1)
        return torch.zeros(len(theta)).masked_fill(~inside, -torch.inf)

    moved, _ = difference_moves(log_f, start, 30, torch.Generator().manual_seed(1))
    assert float(moved.min()) > 0
    assert float(moved.max()) < 1
    # The mean of 500 uniform draws: .5 +- .013; four times that.
    assert abs(float(moved.mean()) - 0.5) < 0.052
