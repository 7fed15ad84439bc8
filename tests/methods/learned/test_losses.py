"""The five losses: their minimiser, their slope everywhere, the paper's form, and KLIEP's lower bound."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from reprior.errors import InputError
from reprior.methods.learned.losses import ESTIMATORS, kliep, loss_of

POINTWISE = [name for name in ESTIMATORS if name != "kliep"]


def weights(n: int = 400, seed: int = 0) -> Tensor:
    """Positive ratios with a mean away from one, in double precision."""
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).exp() * 1.7


def slope(name: str, a: Tensor, r: Tensor) -> Tensor:
    a = a.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(loss_of(name)(a, r), a)
    return gradient


@pytest.mark.parametrize("name", POINTWISE)
def test_best_constant_is_the_log_of_the_mean_ratio(name):
    r = weights()
    best = float(r.mean().log())
    grid = best + torch.linspace(-3, 3, 601, dtype=torch.float64)
    values = torch.stack([loss_of(name)(a.expand(len(r)), r) for a in grid])
    assert float(grid[values.argmin()]) == pytest.approx(best, abs=0.0051)  # half a grid step
    assert float(slope(name, torch.full_like(r, best), r).sum()) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_slope_is_zero_at_the_log_ratio(name):
    r = weights()
    assert float(slope(name, r.log(), r).abs().max()) < 1e-14
    if name == "kliep":  # found up to a constant
        assert float(slope(name, r.log() - 4.2, r).abs().max()) < 1e-14


@pytest.mark.parametrize("name", POINTWISE)
@pytest.mark.parametrize("log_r", [-8.0, -1.0, 0.0, 2.5, 8.0])
def test_slope_leads_to_the_log_ratio_from_everywhere(name, log_r):
    # Also beyond the point where exponentials are continued as straight lines: no flat and no falling end.
    a = torch.linspace(-60, 60, 241, dtype=torch.float64) + 0.1
    push = slope(name, a, torch.full_like(a, math.exp(log_r)))
    assert bool((push * (a - log_r) > 0).all()), push


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_minimiser_is_the_conditional_mean(name):
    # Two states z seen 200 times each: a(z) must become log E[r | z] (KLIEP: their difference).
    r = weights()
    state = torch.arange(len(r)) % 2
    a = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([a], max_iter=100, line_search_fn="strong_wolfe", tolerance_grad=1e-12)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = loss_of(name)(a[state], r)
        loss.backward()
        return loss

    optimiser.step(closure)  # pyright: ignore[reportArgumentType]
    best = torch.stack([r[state == 0].mean(), r[state == 1].mean()]).log()
    if name == "kliep":
        assert float((a[1] - a[0]).detach()) == pytest.approx(float(best[1] - best[0]), abs=1e-6)
    else:
        assert torch.allclose(a.detach(), best, atol=1e-6)


FORMS = {  # g(h) and h(a) of -E_q[h] + E_p[g(h)]
    "nre": (lambda h: -torch.log1p(-h.exp()), lambda a: torch.nn.functional.logsigmoid(a)),
    "pearson": (lambda h: h**2 / 4 + h, lambda a: 2 * torch.expm1(a)),
    "reverse_kl": (lambda h: -1 - torch.log(-h), lambda a: -torch.exp(-a)),
    "hellinger": (lambda h: h / (1 - h), lambda a: -torch.expm1(-a / 2)),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_each_is_the_variational_objective_up_to_a_constant(name):
    g, h = FORMS[name]
    a = torch.linspace(-4, 4, 41, dtype=torch.float64)
    for r in (0.2, 1.0, 6.0):
        ratio = torch.tensor([r], dtype=torch.float64)
        ours = torch.stack([loss_of(name)(v.reshape(1), ratio) for v in a])
        theirs = -r * h(a) + g(h(a))
        gap = ours - theirs
        assert float(gap.max() - gap.min()) < 1e-10
        # and g'(h) = e^a at the function used
        point = h(a).clone().requires_grad_(True)
        (inverse,) = torch.autograd.grad(g(point).sum(), point)
        assert torch.allclose(inverse, a.exp(), rtol=1e-9)


# --- KLIEP -----------------------------------------------------------------------------------------------------------


def test_kliep_does_not_see_the_scale_of_the_weights_nor_a_constant():
    r, a = weights(), torch.randn(400, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    value = float(kliep(a, r))
    for factor in (1e-6, 3.0, 1e6):
        assert float(kliep(a, factor * r)) == pytest.approx(value, abs=1e-12)
    for constant in (-500.0, 7.0, 500.0):
        assert float(kliep(a + constant, r)) == pytest.approx(value, abs=1e-10)


def test_kliep_has_a_lower_bound():
    # log mean e^a - mean(r a) >= -mean(r log r) for mean(r) = 1 (Gibbs), whatever the scale of the given weights.
    r = weights()
    one = r / r.mean()
    bound = -float((one * one.log()).mean())
    generator = torch.Generator().manual_seed(2)
    for scale in (0.1, 1.0, 10.0, 1000.0):
        a = scale * torch.randn(400, dtype=torch.float64, generator=generator)
        assert float(kliep(a, 3 * r)) >= bound
    assert float(kliep(r.log(), 3 * r)) == pytest.approx(bound, abs=1e-12)


def test_kliep_does_not_descend_along_a_constant():
    # Weights of mean 3: without the normalisation every step along a constant gains 2 per unit, without end.
    r = weights()
    r = 3 * r / r.mean()
    shift = torch.zeros((), dtype=torch.float64, requires_grad=True)
    kliep(r.log() + shift, r).backward()
    assert shift.grad is not None
    assert abs(float(shift.grad)) < 1e-12
    naive = float(torch.logsumexp(r.log(), 0) - math.log(len(r)) - (r * r.log()).mean())
    moved = float(torch.logsumexp(r.log() + 100, 0) - math.log(len(r)) - (r * (r.log() + 100)).mean())
    assert moved < naive - 199  # what it guards against


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(ESTIMATORS))
@pytest.mark.parametrize("a", [-200.0, -80.0, 80.0, 200.0])
def test_single_precision_stays_finite(name, a):
    values = torch.tensor([a, 0.0], requires_grad=True)
    loss = loss_of(name)(values, torch.tensor([0.0, 2.0]))
    loss.backward()
    assert values.grad is not None
    assert bool(torch.isfinite(loss))
    assert bool(torch.isfinite(values.grad).all())


def test_unknown_estimator_is_named_with_those_allowed():
    with pytest.raises(InputError, match="'nce' is unknown; allowed: nre, kliep"):
        loss_of("nce")
