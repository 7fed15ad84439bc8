"""log p(theta | x) by the probability-flow ODE: against Gaussians and a mixture, and by quadrature."""

from __future__ import annotations

import math

import pytest
import torch
from exact import GaussianBase, exact_posterior, gaussian_posterior
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal, Normal

import reprior
from reprior.diffusion.denoiser import Denoiser, Wrapped
from reprior.diffusion.density import log_density

TOLERANCE = 0.01  # in log-density: what 32 Runge-Kutta steps, s_min > 0 and float32 leave


class Mixture(Denoiser):
    """The exact denoiser of a 1-D mixture of two Gaussians (no x): the sum of share_k(z) E_k[theta_0 | z]."""

    dim, observations, noise, s_min, s_max = 1, 1, "scalar", 1e-3, 40.0
    x = torch.zeros(1, 1)
    logits = torch.tensor([0.4, 0.6]).log()
    means = torch.tensor([-1.2, 0.8])
    sds = torch.tensor([0.2, 0.4])

    def law(self) -> MixtureSameFamily:
        return MixtureSameFamily(Categorical(logits=self.logits), Normal(self.means, self.sds))

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        total = self.sds**2 + s**2
        share = torch.softmax(self.logits + Normal(self.means, total.sqrt()).log_prob(z), -1)
        each = self.means + self.sds**2 / total * (z - self.means)
        return (share * each).sum(-1, keepdim=True)


class Tilted(Wrapped):
    """The denoiser of q = p exp(b'theta) / Z for Gaussian p: mean_q = mean_p + Cov[theta | z] b, exactly."""

    def __init__(self, inner: Denoiser, cov: Tensor, b: Tensor):
        super().__init__(inner)
        self.cov, self.b = cov, b

    def mean(self, z: Tensor, s: Tensor) -> Tensor:
        eye = torch.eye(self.dim, dtype=torch.float64)
        left = self.cov @ torch.linalg.inv(eye + self.cov / float(s) ** 2)
        return self.inner.mean(z, s) + (left @ self.b).to(z)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_equals_the_exact_gaussian_log_density(rho):
    posterior, prior = gaussian_posterior(dim=3, c=0.1, rho=rho)
    x = torch.tensor([0.8, -0.4, 0.1])
    exact = exact_posterior(prior, x, 0.1)
    theta = exact.loc + torch.randn(40, 3, generator=torch.Generator().manual_seed(0)) @ exact.scale_tril.T
    error = posterior.log_prob(theta, x) - exact.log_prob(theta)
    assert float(error.abs().max()) < TOLERANCE


def test_holds_far_in_the_tails():
    posterior, prior = gaussian_posterior(dim=2, c=0.1)
    x = torch.tensor([0.8, -0.4])
    exact = exact_posterior(prior, x, 0.1)
    theta = exact.loc + 6 * exact.scale_tril @ torch.tensor([1.0, -1.0])  # log-density 36 below the peak
    error = posterior.log_prob(theta, x) - exact.log_prob(theta)
    assert abs(float(error)) < 5 * TOLERANCE


def test_each_bound_observation_has_its_own_density():
    base = GaussianBase(torch.eye(2), 0.2)
    x = torch.tensor([[0.5, -0.5], [1.5, 0.0], [-1.0, 2.0]])
    near = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(1))
    theta = base.posterior_mean(x).float() + 0.4 * near
    value = log_density(base.condition(x), theta)
    assert value.shape == (5, 3)
    exact = MultivariateNormal(base.posterior_mean(x), base.cov).log_prob(theta.double())
    assert float((value - exact).abs().max()) < TOLERANCE
    for k in range(3):  # and it does not depend on its neighbours
        one = log_density(base.condition(x[k : k + 1]), theta[:, k : k + 1])[:, 0]
        assert torch.allclose(one, value[:, k], atol=1e-4)


def test_mixture_density_and_its_integral():
    mixture = Mixture()
    grid = torch.linspace(-3, 3, 601)
    value = log_density(mixture, grid.reshape(-1, 1, 1))[:, 0]
    exact = mixture.law().log_prob(grid)
    near = exact > -6
    assert float((value - exact)[near].abs().max()) < 3 * TOLERANCE
    # The trapezoidal rule is exact to 1e-6 here: the range holds all but 1e-7, a spacing is a twentieth of an sd.
    assert float(torch.trapezoid(value.double().exp(), grid.double())) == pytest.approx(1, abs=TOLERANCE)


def test_normalises_in_two_dimensions():
    base = GaussianBase(torch.tensor([[1.0, 0.7], [0.7, 1.0]]), 0.2)
    x = torch.tensor([[0.3, -0.6]])
    m, sd = base.posterior_mean(x)[0].float(), base.cov.diagonal().sqrt().float()
    axis = torch.linspace(-5, 5, 41)
    theta = torch.cartesian_prod(m[0] + sd[0] * axis, m[1] + sd[1] * axis).unsqueeze(1)
    value = log_density(base.condition(x), theta).double().exp()
    cell = float(sd[0] * sd[1]) * (10 / 40) ** 2
    assert float(value.sum()) * cell == pytest.approx(1, abs=TOLERANCE)


def test_guided_density_is_that_of_the_tilted_posterior():
    base = GaussianBase(torch.eye(2), 0.3)
    x = torch.tensor([[0.5, -1.0]])
    b = torch.tensor([2.0, -1.0], dtype=torch.float64)
    guided = Tilted(base.condition(x), base.cov, b)
    exact = MultivariateNormal(base.posterior_mean(x)[0] + base.cov @ b, base.cov)
    theta = exact.loc.float() + 0.5 * torch.randn(20, 1, 2, generator=torch.Generator().manual_seed(2))
    error = log_density(guided, theta)[:, 0] - exact.log_prob(theta[:, 0].double())
    assert float(error.abs().max()) < TOLERANCE


def test_more_steps_bring_it_closer():
    mixture = Mixture()
    theta = torch.linspace(-1.6, 1.6, 33).reshape(-1, 1, 1)
    exact = mixture.law().log_prob(theta[:, 0, 0])
    errors = [float((log_density(mixture, theta, n)[:, 0] - exact).abs().max()) for n in (6, 12, 48)]
    assert errors[0] > 3 * errors[1] > 9 * errors[2]


def test_leaves_no_graph_behind():
    base = GaussianBase(torch.eye(1), 0.3)
    with torch.no_grad():
        value = log_density(base.condition(torch.zeros(1, 1)), torch.zeros(1, 1, 1))
    assert not value.requires_grad
    assert float(value) == pytest.approx(-math.log(2 * math.pi * float(base.cov)) / 2, abs=TOLERANCE)


def test_a_row_that_is_not_finite_spoils_no_other():
    base = GaussianBase(torch.eye(2), 0.3)
    theta = torch.tensor([[[math.nan, 0.0]], [[0.1, -0.2]]])
    value = log_density(base.condition(torch.zeros(1, 2)), theta)
    assert bool(torch.isnan(value[0]).all())
    assert torch.allclose(value[1:], log_density(base.condition(torch.zeros(1, 2)), theta[1:]))


def test_a_process_that_starts_low_has_the_exact_density():
    """q wider than p: transport starts at noise near the posterior's own width, and far from zero."""
    posterior, _ = gaussian_posterior(dim=2, c=0.03, rho=0.3)
    wide = MultivariateNormal(torch.tensor([0.3, 0.0]), 4 * torch.eye(2))
    x = torch.tensor([2.5, -1.0])
    adapted = reprior.adapt(posterior, wide, "transport")
    guided = adapted.method.guide(posterior.condition(x[None]), torch.Generator().manual_seed(0))
    assert guided.s_max < 3
    exact = exact_posterior(wide, x, 0.03)
    theta = exact.loc + 1.5 * torch.randn(40, 2, generator=torch.Generator().manual_seed(0)) @ exact.scale_tril.T
    error = log_density(guided, theta.unsqueeze(1))[:, 0] - exact.log_prob(theta)
    assert float(error.abs().max()) < TOLERANCE
