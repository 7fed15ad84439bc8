"""The checks of the base itself, against closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from bad_bases import deaf, wrong_width
from exact import gaussian_posterior

from reprior.diagnostics.base import fit_residual, local_simulations

X = torch.tensor([[0.5, -0.3]])


def test_all_simulations_carry_a_linear_answer():
    posterior, _ = gaussian_posterior(dim=2)
    base = posterior.sample((400,), X[0], seed=1)
    # The linear fit is exact here, so I = 0 up to the noise of 4,000 rows and 150 draws (about .02).
    assert local_simulations(posterior, X, base) == pytest.approx(4_000 / 9, rel=0.1)  # nine cells in two dimensions


def test_narrow_answers_rest_on_few_simulations():
    # A posterior f times as wide as the linear fit's: I = d (f^2 / 2 - 1/2 - log f), here 2 (.005 - .5 + 2.303) = 3.62.
    posterior = wrong_width(0.1)
    base = posterior.sample((400,), X[0], seed=1)
    gain = 2 * (0.1**2 / 2 - 0.5 - math.log(0.1))
    # I is an average over 150 draws of terms with a standard deviation of about 1: error .08; four of them.
    assert math.log(4_000 / 9 / local_simulations(posterior, X, base)) == pytest.approx(gain, abs=0.33)


def test_the_exact_base_leaves_no_residual_information():
    posterior, _ = gaussian_posterior(dim=2, n=8_000)
    residual = fit_residual(posterior, seed=0)
    assert float(residual.r2.max()) < 0.02
    assert float(residual.shift(posterior, X).abs().max()) == 0


def test_what_a_deaf_base_does_not_take_from_the_data_is_found():
    # theta_1 - E[theta_1 | z] with z = theta_1 + N(0, 4): residual variance 4/5. Given x_1 = theta_1 + N(0, .3) too, the
    # variance is 1 / (1 + 1/4 + 1/.3) = .218, so R^2 = 1 - .218/.8 = .727 for a regression on (z, x). On x alone,
    # cov(residual, x_1)^2 / (var var) = .8^2 / (.8 1.3) = .615.
    posterior = deaf()
    residual = fit_residual(posterior, seed=0)
    assert float(residual.r2[0]) == pytest.approx(0.615, abs=0.04)
    assert float(residual.r2[1]) < 0.02
    # The regression's slope is .8/1.3 per unit of x, in residual standard deviations of sqrt(.8).
    shift = residual.shift(posterior, torch.tensor([[1.3, 0.0]]))
    assert float(shift[0]) == pytest.approx(0.8 / 0.8**0.5, abs=0.1)
    assert float(shift[1]) == 0
