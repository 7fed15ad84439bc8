"""The samplers behind the references, on densities with known moments."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal

from reprior.errors import InputError
from reprior_bench.tasks.grid import grid_proposal
from reprior_bench.tasks.rejection import effective_size, rejection_sample
from reprior_bench.tasks.student import StudentMixture, fit_student, student_proposal


def from_uniform(count, rng):
    """Proposes on (0, 1) for the density 3 theta^2, without its constant."""
    theta = torch.from_numpy(rng.random((count, 1)))
    return theta, 2 * theta[:, 0].log()


def never(count, rng):
    return torch.zeros(count, 1).double(), torch.full((count,), -torch.inf).double()


def test_rejection_draws_the_target():
    n = 100_000
    theta = rejection_sample([from_uniform], n, np.random.default_rng(0))[:, 0]
    # E theta = 3/4, Var = 3/80; the CDF is theta^3.
    assert float(theta.mean()) == pytest.approx(0.75, abs=5 * (3 / 80 / n) ** 0.5)
    for point in (0.2, 0.5, 0.9, 0.99):
        share = point**3
        below = float((theta < point).double().mean())
        assert below == pytest.approx(share, abs=5 * (share * (1 - share) / n) ** 0.5)
    assert len(theta.unique()) == n


def test_rejection_chooses_the_proposal_that_works():
    theta = rejection_sample([never, from_uniform], 5000, np.random.default_rng(0))
    assert theta.shape == (5000, 1)
    assert float(theta.mean()) == pytest.approx(0.75, abs=5 * (3 / 80 / 5000) ** 0.5)


def test_fallback_is_built_only_when_needed():
    built = []

    def fallback(rng):
        built.append(True)
        return from_uniform

    def rare(count, rng):
        theta, log_w = from_uniform(count, rng)
        return theta, torch.where(torch.from_numpy(rng.random(count)) < 1e-3, log_w, -torch.inf)

    rejection_sample([from_uniform], 1000, np.random.default_rng(0), fallbacks=[fallback])
    assert not built
    theta = rejection_sample([rare], 1000, np.random.default_rng(0), fallbacks=[fallback])
    assert len(built) == 1
    assert float(theta.mean()) == pytest.approx(0.75, abs=5 * (3 / 80 / 1000) ** 0.5)


def test_a_target_without_mass_is_refused():
    with pytest.raises(InputError, match="no parameter that the prior allows"):
        rejection_sample([never], 10, np.random.default_rng(0))


def test_effective_size():
    assert effective_size(torch.zeros(100)) == pytest.approx(100)
    assert effective_size(torch.tensor([0.0, -torch.inf, -torch.inf])) == pytest.approx(1)
    assert effective_size(torch.full((3,), -torch.inf)) == 0


@pytest.mark.parametrize("far", [3.0, 200.0])
def test_grid_finds_a_narrow_density_in_a_wide_box(far):
    covariance = torch.tensor([[0.04, 0.038], [0.038, 0.04]]).double()  # correlation 0.95
    target = MultivariateNormal(torch.tensor([0.3, -0.7]).double(), covariance)
    low, high = torch.tensor([-far, -far]).double(), torch.tensor([far, 2 * far]).double()
    propose = grid_proposal(target.log_prob, low, high)
    theta, log_w = propose(100_000, np.random.default_rng(0))
    # The interpolant is close to the density (weights nearly even), and the weights make up for the rest.
    assert effective_size(log_w) > 0.99 * len(log_w)
    weights = torch.softmax(log_w, 0)
    assert torch.allclose(weights @ theta, target.mean, atol=5 * 0.2 / 100_000**0.5)
    centred = theta - target.mean
    assert torch.allclose((weights[:, None] * centred).T @ centred, covariance, atol=5 * 2**0.5 * 0.04 / 316)


def test_grid_covers_the_edges_of_a_box():
    # Uniform on a box whose edges lie between the points of the grid.
    def log_f(theta):
        inside = ((theta > torch.tensor([0.1234, 0.5])) & (theta < torch.tensor([0.4567, 0.7771]))).all(-1)
        return torch.where(inside, 0.0, -torch.inf).double()

    propose = grid_proposal(log_f, torch.tensor([-1.0, -1.0]).double(), torch.tensor([2.0, 2.0]).double())
    n = 50_000
    theta = rejection_sample([propose], n, np.random.default_rng(0))
    width = torch.tensor([0.4567 - 0.1234, 0.7771 - 0.5]).double()
    u = (theta - torch.tensor([0.1234, 0.5])) / width
    assert ((u > 0) & (u < 1)).all()
    for edge in (0.01, 0.5, 0.99):  # the shares near the edges, where interpolation is worst
        assert ((u < edge).double().mean(0) - edge).abs().max() < 5 * (edge * (1 - edge) / n) ** 0.5


def test_student_mixture_is_normalised():
    mixture = StudentMixture(
        torch.tensor([0.3, 0.7]).double(),
        torch.tensor([[-1.0, 0.0], [2.0, 1.0]]).double(),
        torch.stack([torch.eye(2), torch.tensor([[1.0, 0.5], [0.5, 2.0]])]).double(),
    )
    axis = torch.linspace(-60, 60, 1201, dtype=torch.float64)
    total = mixture.log_prob(torch.cartesian_prod(axis, axis)).exp().sum() * 0.01
    assert float(total) == pytest.approx(1.0, abs=1e-3)
    drawn = mixture.sample(200_000, np.random.default_rng(0))
    # Mean 0.3 (-1, 0) + 0.7 (2, 1); each coordinate's sd is below 3.
    assert torch.allclose(drawn.mean(0), torch.tensor([1.1, 0.7]).double(), atol=5 * 3 / 200_000**0.5)


def test_student_fits_a_distant_posterior():
    # The prior N(0, I) and one observation at 12 of a parameter with noise 0.5: no prior draw comes near.
    prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)

    def log_likelihood(theta):
        return -((theta[:, 0] - 12) ** 2) / (2 * 0.25)

    rng = np.random.default_rng(0)
    theta = rejection_sample([student_proposal(prior, log_likelihood, rng)], 20_000, rng)
    # Posterior: first N(12 / 1.25, 0.2), second N(0, 1).
    assert float(theta[:, 0].mean()) == pytest.approx(9.6, abs=5 * (0.2 / 20_000) ** 0.5)
    assert float(theta[:, 0].var()) == pytest.approx(0.2, rel=5 * (2 / 20_000) ** 0.5)
    assert float(theta[:, 1].mean()) == pytest.approx(0.0, abs=5 / 20_000**0.5)


def test_student_gives_up_where_there_is_no_mass():
    def log_f(phi):
        return torch.full((len(phi),), -torch.inf).double()

    phi = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0)).double()
    with pytest.raises(InputError, match="no proposal"):
        fit_student(log_f, phi, log_f(phi), np.random.default_rng(0))
