"""Two Moons: moments of the simulator, the likelihood against it, and the reference against quadrature and ranks."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Independent, Uniform

from reprior_bench import tasks

TASK = tasks.get("two_moons")


def grid(low: float, high: float, points: int) -> tuple[torch.Tensor, float]:
    axis = torch.linspace(low, high, points)
    return torch.cartesian_prod(axis, axis), float(axis[1] - axis[0]) ** 2


@pytest.mark.parametrize("theta", [(0.3, 0.5), (-0.9, 0.1)])
def test_simulator_moments(theta):
    n = 200_000
    x = TASK.simulate(torch.tensor([theta]).expand(n, 2), seed=0).double()
    t1, t2 = theta
    shift = torch.tensor([-abs(t1 + t2), t2 - t1]) / 2**0.5
    centred = x - shift
    # E cos a = 2/pi and E cos^2 a = 1/2 over a ~ U(-pi/2, pi/2); E r = 0.1, E r^2 = 0.0101.
    expected = torch.tensor([0.25 + 0.1 * 2 / math.pi, 0.0])
    variance = torch.tensor([0.0101 / 2 - (0.2 / math.pi) ** 2, 0.0101 / 2])
    assert ((centred.mean(0) - expected).abs() < 5 * (variance / n).sqrt()).all()
    assert torch.allclose(centred.var(0), variance.double(), rtol=0.02)


def test_likelihood_is_the_density_of_the_simulator():
    # p(x | theta) is the density of c = x - offset(theta). At x = 0 and theta_1 + theta_2 > 0, c = (u, -v), where
    # u = (theta_1 + theta_2) / sqrt 2 and v = (theta_2 - theta_1) / sqrt 2: integrate over (u, v), an isometry.
    cells, area = grid(0.0, 0.6, 1201)
    u, v = cells[:, 0], cells[:, 1] - 0.3
    theta = torch.stack([u - v, u + v], dim=-1) / 2**0.5
    p = TASK.log_likelihood(theta, torch.zeros(2)).double().exp() * area
    # The jump of the density at c_1 = 0.25 costs the grid (spacing 5e-4) about 1e-3.
    assert float(p.sum()) == pytest.approx(1.0, abs=3e-3)
    c = TASK.simulate(torch.zeros(200_000, 2), seed=1)
    # Five standard errors, 0.0056, and the same 1e-3.
    assert float(p[u > 0.33].sum()) == pytest.approx(float((c[:, 0] > 0.33).double().mean()), abs=0.0066)


@pytest.mark.parametrize("prior", ["target", "uniform"])
def test_reference_matches_quadrature(prior):
    _, x = TASK.observations("id", 1, seed=2)
    box = Independent(Uniform(torch.tensor([-1.0, -1.0]), torch.tensor([1.0, 1.0])), 1)
    q = TASK.target_prior("id") if prior == "target" else box
    n = 20_000
    drawn = TASK.reference(x[0], n, "id", q, seed=0).double()
    cells, _ = grid(-1.4, 1.4, 2241) if prior == "target" else grid(-0.9999, 0.9999, 1601)
    log_f = TASK.log_likelihood(cells, x[0]).double() + q.log_prob(cells).double()
    cells, weights = cells.double(), torch.softmax(log_f, 0)
    # The share of the moon above the diagonal, then the moments of that moon.
    upper = float(weights[cells.sum(-1) > 0].sum())
    error = 5 * (max(upper * (1 - upper), 1e-4) / n) ** 0.5
    assert float((drawn.sum(-1) > 0).double().mean()) == pytest.approx(upper, abs=error)
    drawn, weights = drawn[drawn.sum(-1) > 0], weights * (cells.sum(-1) > 0) / upper
    mean = weights @ cells
    sd = (weights @ (cells - mean) ** 2).sqrt()
    # Five standard errors; the grid (spacing 0.00125, ring width 0.01) adds less than 1e-3.
    assert ((drawn.mean(0) - mean).abs() < 5 * sd / len(drawn) ** 0.5 + 1e-3).all()
    assert ((drawn.std(0) / sd - 1).abs() < 5 / len(drawn) ** 0.5 + 5e-3).all()


@pytest.mark.parametrize("regime", ["id", "ood"])
def test_reference_is_calibrated(calibration, regime):
    def statistics(theta):
        return torch.stack([theta[:, 0], theta[:, 1], theta.sum(-1), theta[:, 1] - theta[:, 0]], dim=-1)

    assert min(calibration(TASK, regime, 300, statistics)) > 0.001


def test_reference_survives_a_narrow_prior():
    _, x = TASK.observations("id", 1, seed=2)
    centre = TASK.reference(x[0], 1, "id", seed=0)[0]
    box = Independent(Uniform(centre - 1e-3, centre + 1e-3), 1)
    drawn = TASK.reference(x[0], 1000, "id", box)
    assert ((drawn - centre).abs() <= 1e-3).all()
