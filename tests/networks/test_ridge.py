"""The cross-validated regression: left-out residuals against refits, either shape of x, and the exact linear-Gaussian posterior."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reprior.networks.ridge import fit_ridge, steady_axes


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear(n: int, m: int, seed: int = 0, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    """theta ~ N(0, I_2), x = theta A' / sqrt(m) + noise N(0, I) / 1, A fixed."""
    theta = normal(n, 2, seed=seed)
    mixing = normal(m, 2, seed=77)
    return theta, theta @ mixing.T + noise * m**0.5 * normal(n, m, seed=seed + 1)


@pytest.mark.parametrize("shape", [(40, 6), (25, 60), (30, 30)])
def test_left_out_residuals_are_those_of_refits(shape):
    n, m = shape
    theta, x = linear(n, m, noise=0.3)
    found = fit_ridge(x, theta)
    for i in (0, 7, n - 1):
        kept = torch.arange(n) != i
        a, b = x[kept].double(), theta[kept].double()
        centre_a, centre_b = a.mean(0), b.mean(0)
        for j, penalty in enumerate(found.penalty):
            slope = torch.linalg.solve(
                (a - centre_a).T @ (a - centre_a) + n * penalty * torch.eye(m),
                (a - centre_a).T @ (b[:, j] - centre_b[j]),
            )
            missed = theta[i, j] - centre_b[j] - (x[i] - centre_a) @ slope
            assert float(found.left[i, j]) == pytest.approx(float(missed), abs=1e-8)


@pytest.mark.parametrize("shape", [(40, 6), (25, 60)])
def test_slope_solves_the_normal_equations(shape):
    theta, x = linear(*shape, noise=0.3)
    found = fit_ridge(x, theta)
    a, b = x.double() - x.double().mean(0), theta.double() - theta.double().mean(0)
    for j, penalty in enumerate(found.penalty):
        exact = torch.linalg.solve(a.T @ a + len(x) * penalty * torch.eye(x.shape[1]), a.T @ b[:, j])
        torch.testing.assert_close(found.slope[j], exact, atol=1e-9, rtol=1e-6)
    torch.testing.assert_close(found.offset, theta.double().mean(0) - found.slope @ x.double().mean(0))


def test_the_exact_linear_gaussian_posterior_where_rows_are_many():
    theta, x = linear(40_000, 4)
    mixing = normal(4, 2, seed=77).double()
    cov = torch.linalg.inv(torch.eye(2) + mixing.T @ mixing / 4)
    found = fit_ridge(x, theta)
    torch.testing.assert_close(found.slope, cov @ mixing.T / 4, atol=0.01, rtol=0)  # standard errors of 0.003
    torch.testing.assert_close(found.left.std(0), cov.diagonal().sqrt(), atol=0.01, rtol=0)


@pytest.mark.parametrize("shape", [(100, 80), (150, 150), (120, 900)])
def test_what_is_left_open_is_what_fresh_rows_miss_where_columns_are_many(shape):
    theta, x = linear(*shape, noise=0.3)
    fresh, fresh_x = linear(4_000, shape[1], seed=50, noise=0.3)
    found = fit_ridge(x, theta)
    missed = (fresh - (fresh_x.double() @ found.slope.T + found.offset)).square().mean(0).sqrt()
    promised = found.left.square().mean(0).sqrt()
    # n rows tell a standard deviation to 1 / sqrt(2 n) = 6 to 7 %.
    assert ((promised / missed).log().abs() < 0.2).all()
    assert (promised < 0.9).all()  # something was learned: the spread of theta is 1


def test_noise_tells_nothing():
    theta, x = normal(200, 2), normal(200, 400, seed=1)
    found = fit_ridge(x, theta)
    fresh = normal(1_000, 400, seed=2).double() @ found.slope.T + found.offset
    assert float(fresh.square().mean().sqrt()) < 0.3
    assert (found.left.std(0) > 0.9 * theta.std(0)).all()


def test_a_constant_and_a_repeated_column_do_no_harm():
    theta, x = linear(300, 3)
    found = fit_ridge(x, theta)
    more = fit_ridge(torch.cat([x, x[:, :1], torch.full((300, 1), 7.0)], 1), theta)
    assert torch.isfinite(more.slope).all()
    torch.testing.assert_close(more.left, found.left, atol=0.02, rtol=0)
    still = fit_ridge(torch.full((300, 4), 2.0), theta)
    assert float(still.slope.abs().max()) == 0
    torch.testing.assert_close(still.offset, theta.double().mean(0))


def test_columns_of_a_summary():
    theta, x = linear(200, 5)
    one = fit_ridge(x, theta, summary=lambda v: torch.cat([v, v.square()], -1))
    two = fit_ridge(torch.cat([x, x.square()], -1), theta)
    torch.testing.assert_close(one.slope, two.slope)


@pytest.mark.parametrize("shape", [(300, 50), (80, 200)])
def test_principal_axes(shape):
    _, x = linear(*shape, noise=0.1)
    found = fit_ridge(x, normal(shape[0], 1), axes=2)
    exact = torch.linalg.svd((x - x.mean(0)).double(), full_matrices=False)
    for k in range(2):
        assert abs(float(found.axes[k] @ exact.Vh[k])) == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(found.spread, exact.S[:2] / shape[0] ** 0.5)


def test_steady_axes_are_those_of_the_signal():
    _, signal = linear(600, 400, noise=0.2)
    assert steady_axes(signal, 40) == 2
    assert steady_axes(normal(200, 5_000), 40) == 0
    assert steady_axes(normal(2_000, 6), 40) == 6  # rows enough for every column
