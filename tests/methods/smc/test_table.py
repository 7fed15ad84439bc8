"""Tables of smoothed functions and knots, against closed forms and quadrature."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as td

from reprior.methods.smc.knots import find_knots
from reprior.methods.smc.mixture import MixtureTwist
from reprior.methods.smc.product import additive
from reprior.methods.smc.spread import Spread
from reprior.methods.smc.table import build_tables
from reprior.quadratic import Quadratic

LOW, HIGH = torch.tensor([-6.0], dtype=torch.float64), torch.tensor([6.0], dtype=torch.float64)
T = LOW + (HIGH - LOW) * (torch.arange(2**14, dtype=torch.float64) + 0.5) / 2**14


def tables(f):
    return build_tables(f(T).unsqueeze(0), LOW, HIGH)


@pytest.mark.parametrize("sd", [0.005, 0.03, 0.2, 0.9])
def test_a_cut(sd):
    """r = 1 above 0: psi = Phi(u / sd), far out on both sides."""
    u = torch.linspace(-8 * sd, 3 * sd, 101, dtype=torch.float64).reshape(-1, 1, 1)
    value, slope, _ = tables(lambda t: torch.where(t > 0, 0.0, -torch.inf).double())(u, torch.tensor([[sd]]))
    exact = torch.special.log_ndtr(u / sd)
    assert torch.allclose(value, exact, atol=0.05, rtol=0.02)
    gradient = (td.Normal(0.0, 1.0).log_prob(u / sd) - exact).exp() / sd
    assert torch.allclose(slope, gradient, atol=0.05 / sd, rtol=0.05)


@pytest.mark.parametrize("sd", [0.01, 0.1, 0.7])
def test_a_gaussian_and_beyond_the_grid(sd):
    u = torch.linspace(-9, 9, 181, dtype=torch.float64).reshape(-1, 1, 1)
    value, slope, curve = tables(lambda t: -0.5 * (t - 0.5) ** 2 / 0.25)(u, torch.tensor([[sd]]))
    var = 0.25 + sd**2
    exact = 0.5 * math.log(0.25 / var) - 0.5 * (u - 0.5) ** 2 / var
    inside = u.abs() < 5
    assert torch.allclose(value[inside], exact[inside], atol=0.02, rtol=0.03)
    assert torch.allclose(curve[inside], torch.tensor(-1 / var, dtype=torch.float64), rtol=0.05)
    assert bool((slope[u > 6.5] < 0).all() and (slope[u < -6.5] > 0).all())  # pulled back from anywhere


def test_a_gap_is_crossed_from_the_nearer_side():
    f = tables(lambda t: torch.where(t.abs() > 2, 0.0, -torch.inf).double())
    _, slope, _ = f(torch.tensor([-0.5, 0.5], dtype=torch.float64).reshape(-1, 1, 1), torch.tensor([[0.01]]))
    assert float(slope[0]) < 0 < float(slope[1])


def test_knots_find_kinks_cuts_and_infinities():
    functions = [
        lambda t: -3 * (t - 0.1234567).abs(),
        lambda t: torch.where(t > 0.7, -t, -torch.inf).double(),
        lambda t: torch.where(t > 0, -0.5 * t.clamp(min=1e-300).log() - t, -torch.inf),
    ]
    low, high = torch.full((3,), -2.0, dtype=torch.float64), torch.full((3,), 3.0, dtype=torch.float64)
    knots = find_knots(lambda i, t: functions[i](t), low, high)
    t = torch.rand(2_000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 5 - 2
    value = knots(t)
    for i, f in enumerate(functions):
        exact = f(t[:, i])
        assert bool((torch.isfinite(value[:, i]) == torch.isfinite(exact)).all())
        inside = torch.isfinite(exact)
        assert float((value[inside, i] - exact[inside]).abs().max()) < 0.05


def test_additive():
    points = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)).double()
    assert additive(lambda t: -t.abs().sum(-1), points) is not None
    assert additive(lambda t: torch.where((t > -1).all(-1), -t.sum(-1), -torch.inf), points) is not None
    assert additive(lambda t: -(t[:, 0] * t[:, 1]), points) is None
    assert additive(lambda t: torch.where(t[:, 0] + t[:, 1] < 1, 0.0, -torch.inf), points) is None


def quadratic() -> Quadratic:
    L = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    return Quadratic(L, torch.tensor([0.7, -0.3], dtype=torch.float64), 0.2, 0.0)


@pytest.mark.parametrize("average", [False, True])
def test_a_gaussian_part_in_closed_form_and_by_monte_carlo(average):
    """psi of a Gaussian r, alone or as a rest that a flat part leaves to the average."""
    spread = Spread.of(torch.randn(400, 1, 2, generator=torch.Generator().manual_seed(1)) * torch.tensor([0.6, 0.3]))
    q = quadratic()
    flat = Quadratic(torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64), 0.0, 0.0)
    twist = (MixtureTwist([flat], q, 512) if average else MixtureTwist([q])).bind(spread)
    mean = torch.randn(5, 1, 2, generator=torch.Generator().manual_seed(2)).double()
    value, slope, _ = twist(mean, 0.5, mean)
    noise = td.MultivariateNormal(torch.zeros(2, dtype=torch.float64), spread.cov(0.5)[0])
    torch.manual_seed(0)
    exact = torch.logsumexp(q(mean[:, 0] + noise.sample((200_000, 1))), 0) - math.log(200_000)
    assert torch.allclose(value[:, 0], exact, atol=0.03)
    step = 1e-3 * torch.eye(2, dtype=torch.float64)
    for i in range(2):
        rise = (twist(mean + step[i], 0.5, mean)[0] - twist(mean - step[i], 0.5, mean)[0]) / 2e-3
        assert torch.allclose(slope[..., i], rise, atol=0.02)
