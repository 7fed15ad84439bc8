"""The quadratic part of log q/p: recovered exactly between Gaussians, in standardised units, and refused otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy import stats as scipy_stats
from torch.distributions import (
    Categorical,
    Cauchy,
    HalfCauchy,
    HalfNormal,
    Independent,
    Laplace,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Uniform,
)

from reprior.change import PriorChange
from reprior.quadratic import Quadratic, find_components, find_quadratic
from reprior.standardizer import Standardizer
from reprior.target import make_change

stats: Any = scipy_stats  # its annotations take numbers only

UNIT = Standardizer(torch.zeros(2), torch.ones(2))
P = MultivariateNormal(torch.tensor([1.0, -2.0]), torch.tensor([[4.0, 1.0], [1.0, 2.0]]))
Q = MultivariateNormal(torch.tensor([2.0, -1.0]), torch.tensor([[1.0, -0.3], [-0.3, 0.5]]))


def change(target, scale: Standardizer = UNIT, prior: Any = P) -> PriorChange:
    return make_change(prior, target, scale, seed=0)


def expected(p: MultivariateNormal, q: MultivariateNormal, scale: Standardizer) -> tuple[torch.Tensor, torch.Tensor]:
    """L and h of log q/p in standardised units u, theta = shift + A u."""
    a, shift = torch.diag(scale.scale.double()), scale.shift.double()
    inverse_q, inverse_p = (torch.linalg.inv(law.covariance_matrix.double()) for law in (q, p))
    slope = inverse_q @ (q.loc.double() - shift) - inverse_p @ (p.loc.double() - shift)
    return a @ (inverse_q - inverse_p) @ a, a @ slope


@pytest.mark.parametrize("scale", [UNIT, Standardizer(torch.tensor([1.0, -2.0]), torch.tensor([2.0, 0.1]))])
def test_gaussian_change_is_found_exactly(scale):
    found = find_quadratic(change(Q, scale))
    L, h = expected(P, Q, scale)
    assert found.exact
    assert found.misfit < 1e-5  # the priors' own numbers are single precision
    assert torch.allclose(found.L, L, atol=1e-5 * float(L.abs().max()))
    assert torch.allclose(found.h, h, atol=1e-5 * float(L.abs().max()))
    z = scale.forward(P.sample(torch.Size((50,))))
    assert torch.allclose(found(z), change(Q, scale)(z), atol=1e-3)  # the constant too


def test_a_callable_and_a_scipy_prior_give_the_same():
    L, _ = expected(P, Q, UNIT)
    by_hand = find_quadratic(change(lambda theta: Q.log_prob(theta) + 12.3))
    frozen = stats.multivariate_normal(Q.loc.numpy(), Q.covariance_matrix.numpy())
    assert by_hand.exact
    assert torch.allclose(by_hand.L, L, atol=1e-3)
    assert torch.allclose(find_quadratic(change(frozen)).L, L, atol=1e-3)


@pytest.mark.parametrize(
    "target",
    [
        Independent(Laplace(torch.zeros(2), torch.ones(2)), 1),
        MixtureSameFamily(Categorical(torch.ones(2)), MultivariateNormal(torch.eye(2), torch.eye(2).expand(2, 2, 2))),
    ],
)
def test_other_changes_are_told_from_quadratic_ones(target):
    assert not find_quadratic(change(target)).exact


def test_truncated_gaussian_is_quadratic_where_it_lives():
    box = Independent(Uniform(torch.tensor([0.0, -3.0]), torch.tensor([2.0, -1.0])), 1)
    found = find_quadratic(change(box))
    assert found.exact
    assert torch.allclose(found.L, -torch.linalg.inv(P.covariance_matrix.double()), atol=1e-4)


def test_narrow_box_is_found_from_draws_of_its_own():
    tiny = Independent(Uniform(torch.tensor([1.0, -2.0]), torch.tensor([1.05, -1.95])), 1)
    found = find_quadratic(change(tiny))  # p has one draw in 10,000 there
    assert found.exact
    assert torch.allclose(found.L, -torch.linalg.inv(P.covariance_matrix.double()), atol=0.01)


def test_too_few_points_say_nothing():
    found = find_quadratic(change(lambda theta: Q.log_prob(theta)), points=11)  # for 6 numbers, 12 at least
    assert not found.exact
    assert found.misfit == float("inf")


@pytest.mark.parametrize(
    ("L", "shape"),
    [
        (torch.eye(2) * 3, "scalar"),
        (torch.zeros(2, 2), "scalar"),
        (1e-6 * torch.ones(2, 2), "scalar"),  # rounding
        (torch.diag(torch.tensor([1.0, 2.0])), "diagonal"),
        (torch.diag(torch.tensor([1.0, 0.0])), "diagonal"),
        (torch.tensor([[1.0, 0.2], [0.2, 1.0]]), "full"),
        # A parameter that q pins down hides neither how two others go together nor, by rounding, makes it up.
        (torch.block_diag(torch.tensor([[2.5e5]]), torch.tensor([[30.0, -10.0], [-10.0, 30.0]])), "full"),
        (torch.tensor([[2.5e5, 1e-3, 0.0], [1e-3, 4.0, 0.0], [0.0, 0.0, 4.0]]), "diagonal"),
    ],
)
def test_shape_names_the_noise_that_expresses_it(L, shape):
    assert Quadratic(L.double(), torch.zeros(len(L)).double(), 0.0, 0.0).shape == shape


def test_scaled_is_the_quadratic_of_a_power():
    found = find_quadratic(change(Q))
    z = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))  # further entries are not parameters
    assert torch.allclose(found.scaled(0.3)(z), 0.3 * found(z), atol=1e-4)
    assert torch.equal(found(z), found(z[:, :2]))


# --- mixtures --------------------------------------------------------------------------------------------------------


def test_components_of_a_mixture_sum_to_its_ratio():
    means = torch.tensor([[0.0, 0.0], [3.0, -3.0], [1.0, 1.0]])
    covs = torch.stack([torch.eye(2) * v for v in (0.5, 1.0, 0.2)])
    mixture = MixtureSameFamily(Categorical(torch.tensor([0.2, 0.5, 0.3])), MultivariateNormal(means, covs))
    this = change(mixture, Standardizer(torch.tensor([1.0, -2.0]), torch.tensor([2.0, 1.4])))
    parts = find_components(this)
    assert parts is not None
    assert len(parts) == 3
    z = torch.randn(200, 2, generator=torch.Generator().manual_seed(1))
    total = torch.logsumexp(torch.stack([part(z.double()) for part in parts]), 0)
    assert torch.allclose(total.float(), this(z), atol=1e-3)


def test_components_of_independent_normals():
    parts = find_components(
        change(MixtureSameFamily(Categorical(torch.ones(2)), Independent(Normal(torch.eye(2), torch.ones(2, 2)), 1)))
    )
    assert parts is not None
    assert [part.shape for part in parts] == ["full", "full"]  # p is correlated, so the ratio is


def test_no_components_without_a_gaussian_mixture_over_a_gaussian():
    laplace = MixtureSameFamily(Categorical(torch.ones(2)), Independent(Laplace(torch.eye(2), torch.ones(2, 2)), 1))
    assert find_components(change(laplace)) is None
    assert find_components(change(Q)) is None
    gauss = MixtureSameFamily(
        Categorical(torch.ones(2)), MultivariateNormal(torch.eye(2), torch.eye(2).expand(2, 2, 2))
    )
    wide = Independent(Laplace(torch.zeros(2), torch.full((2,), 3.0)), 1)
    assert find_components(change(gauss, prior=wide)) is None
    low, high = torch.tensor([[-1.0, -3.0], [1.0, -2.0]]), torch.tensor([[1.0, -1.0], [2.0, 0.0]])
    boxes = MixtureSameFamily(Categorical(torch.ones(2)), Independent(Uniform(low, high), 1))
    assert find_components(change(boxes)) is None


def test_one_narrow_parameter_does_not_hide_that_another_is_no_gaussian():
    p = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    mixed = [Normal(torch.zeros(1), torch.tensor([0.01])), Laplace(torch.zeros(1), torch.tensor([0.2]))]
    both = [mixed[0], Normal(torch.zeros(1), torch.tensor([0.2]))]
    assert not find_quadratic(make_change(p, mixed, UNIT, seed=0)).exact
    assert find_quadratic(make_change(p, both, UNIT, seed=0)).exact


@pytest.mark.parametrize("d", [1, 2, 4, 5, 6, 8])
@pytest.mark.parametrize("scale", [0.1, 0.3, 1.0, 2.0])
def test_heavy_tails_are_no_gaussian_change(d, scale):
    unit = Standardizer(torch.zeros(d), torch.ones(d))
    pairs = (
        (Normal(torch.zeros(d), torch.ones(d)), Cauchy(torch.zeros(d), torch.full((d,), scale))),
        (HalfNormal(torch.ones(d)), HalfCauchy(torch.full((d,), scale))),
    )
    for p, q in pairs:
        found = find_quadratic(make_change(Independent(p, 1), Independent(q, 1), unit, seed=0))
        assert not found.exact, (d, scale, found.misfit)


@pytest.mark.parametrize(("loc", "scale"), [(0.0, 10.0), (2.0, 0.01), (0.5, 0.8)])
def test_wide_and_narrow_gaussian_changes_of_many_parameters_are(loc, scale):
    unit = Standardizer(torch.zeros(8), torch.ones(8))
    q = Independent(Normal(torch.full((8,), loc), torch.full((8,), scale)), 1)
    assert find_quadratic(make_change(Independent(Normal(torch.zeros(8), torch.ones(8)), 1), q, unit, seed=0)).exact
