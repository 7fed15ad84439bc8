"""Target priors that are hardly wider than the lowest noise of the base: right widths by every way that `auto` takes."""

from __future__ import annotations

import math

import pytest
import torch
from exact import GaussianBase, exact_posterior, gaussian_posterior
from torch.distributions import LogNormal, MultivariateNormal, Normal, StudentT

import reprior
from reprior.diffusion.denoiser import FINE, Finer, finer
from reprior.quadratic import local_part

C, S_MIN, MIDDLE = 0.3, 0.002, 0.4
X = torch.tensor([0.6, 0.2])
DRAWS = 4_000


@pytest.fixture(scope="module")
def posterior():
    made, _ = gaussian_posterior(dim=2, c=C, noise="diagonal")
    made.base.s_min = S_MIN
    return made


def target(kind: str, width: float):
    one = torch.ones(1)
    first = {
        "normal": Normal(MIDDLE * one, width * one),
        "student": StudentT(4 * one, MIDDLE * one, width * one),
        "lognormal": LogNormal(math.log(MIDDLE) * one, width / MIDDLE * one),
    }[kind]
    return first, [first, Normal(0 * one, one)]


def by_quadrature(posterior, first, width: float) -> tuple[float, float]:
    """Mean and standard deviation of theta_1 under the target prior."""
    exact = exact_posterior(posterior.prior, X, C)
    theta = MIDDLE + width * torch.linspace(-60, 60, 400_001, dtype=torch.float64)
    theta = theta[theta > 0]
    base = Normal(exact.loc[0].double(), exact.covariance_matrix[0, 0].double().sqrt()).log_prob(theta)
    log_p = base + first.log_prob(theta) - Normal(0.0, 1.0).log_prob(theta)
    weight = torch.softmax(log_p, 0)
    mean = float(weight @ theta)
    return mean, float(weight @ (theta - mean).square()) ** 0.5


@pytest.mark.parametrize("width", [0.01, 0.003, 0.001])
@pytest.mark.parametrize("kind", ["normal", "student", "lognormal"])
def test_a_narrow_target_prior_keeps_its_width(posterior, kind: str, width: float):
    first, q = target(kind, width)
    mean, sd = by_quadrature(posterior, first, width)
    adapted = reprior.adapt(posterior, q)
    theta, info = adapted.sample((DRAWS,), X, seed=1, return_info=True)
    off = (float(theta[:, 0].double().mean()) - mean) / sd
    # Standard errors: .016 of the mean; of the width .011 for a Gaussian, .03 for Student's with four degrees of freedom.
    # A process that ends at the base's lowest noise would be too narrow by 17 % at .003 and by 55 % at .001.
    assert abs(off) < 0.08, info
    assert float(theta[:, 0].double().std()) / sd == pytest.approx(1, abs=0.1 if kind == "student" else 0.05)
    # The other parameter is left alone, and as varied as if nothing had been resampled.
    exact = exact_posterior(posterior.prior, X, C)
    second = exact.covariance_matrix[1, 1].sqrt()
    assert float((theta[:, 1].mean() - exact.loc[1]) / second) == pytest.approx(0, abs=0.1)
    assert float(theta[:, 1].std() / second) == pytest.approx(1, abs=0.06)
    assert len(theta[:, 1].unique()) > 0.99 * DRAWS


def test_a_narrow_direction_between_the_parameters(posterior):
    cov = torch.tensor([[1e-6, 0.8e-3], [0.8e-3, 1.0]])
    q = MultivariateNormal(torch.tensor([MIDDLE, 0.0]), cov)
    exact = exact_posterior(q, X, C)
    theta = reprior.adapt(posterior, q).sample((DRAWS,), X, seed=1)
    assert (theta.std(0) / exact.covariance_matrix.diagonal().sqrt()).tolist() == pytest.approx([1, 1], abs=0.06)
    assert ((theta.mean(0) - exact.loc) / theta.std(0)).tolist() == pytest.approx([0, 0], abs=0.1)


@pytest.mark.parametrize("noise", ["scalar", "diagonal", "full"])
def test_the_score_below_the_lowest_noise_is_the_one_there(noise: str):
    cov = torch.tensor([[1.0, 0.5], [0.5, 2.0]])
    coarse = GaussianBase(cov, C, noise, s_min=0.01).condition(X.unsqueeze(0))
    truth = GaussianBase(cov, C, noise, s_min=1e-5).condition(X.unsqueeze(0))
    fine = Finer(coarse, 0.001)
    z = torch.randn(50, 1, 2, generator=torch.Generator().manual_seed(0))
    high = torch.tensor(0.02)
    assert torch.equal(fine.mean(z, high), coarse.mean(z, high))
    s = torch.tensor(0.002) if noise == "scalar" else torch.tensor([0.002, 0.05])
    # The score changes by s_min^2 over the posterior variance, .0005, between the two noises; steps are 1e-5 to 1e-2.
    assert torch.allclose(fine.mean(z, s) - z, truth.mean(z, s) - z, rtol=2e-3, atol=3e-7)
    if noise == "full":
        angle = torch.tensor([[0.8, -0.6], [0.6, 0.8]])
        tilted = angle @ torch.diag(torch.tensor([0.002, 0.05]) ** 2) @ angle.T
        assert torch.allclose(fine.mean_full(z, tilted) - z, truth.mean_full(z, tilted) - z, rtol=2e-3, atol=1e-6)


def test_wide_targets_leave_the_denoiser_as_it_is():
    denoiser = GaussianBase(torch.eye(2), C, s_min=0.002).condition(X.unsqueeze(0))
    assert finer(denoiser, 0.002 / FINE) is denoiser
    finest = finer(denoiser, 0.001)
    assert finest.s_min == pytest.approx(FINE * 0.001)
    assert finest.extra_steps == math.ceil(math.log(20) / 0.35)


def test_the_local_part_of_a_quadratic_is_the_quadratic():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(500, 2, generator=generator, dtype=torch.float64)
    L, h = torch.tensor([[3.0, 0.0], [0.0, -1.0]], dtype=torch.float64), torch.tensor([0.5, 2.0], dtype=torch.float64)
    log_r = -0.5 * ((z @ L) * z).sum(-1) + z @ h + 0.7
    weight = torch.rand(500, generator=generator)
    full = local_part(z, log_r.index_fill(0, torch.tensor([3]), -torch.inf), weight, "full")
    assert full is not None
    # What widens, -1, is no part of it; the slope is then fitted anew, so only the first parameter's is known.
    assert torch.allclose(full.L, torch.diag(torch.tensor([3.0, 0.0], dtype=torch.float64)), atol=1e-8)
    assert float(full.h[0]) == pytest.approx(0.5, abs=0.2)
    narrowing = log_r - 0.5 * 2 * z[:, 1] ** 2
    part = local_part(z, narrowing, weight, "diagonal")
    assert part is not None
    assert torch.allclose(part(z), narrowing, atol=1e-7)
    assert local_part(z[:20], narrowing[:20], weight[:20], "diagonal") is None
