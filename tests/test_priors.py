"""Priors: what users may write, seeded draws, densities with -inf outside the support, plain data."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scipy.stats as st
import torch
from sbi.utils import BoxUniform
from sbi.utils.user_input_checks import process_prior
from torch import Tensor
from torch import distributions as td

from reprior import priors
from reprior.errors import InputError

ONE, TWO = torch.ones(2), 2 * torch.ones(2)
MIXTURE = td.MixtureSameFamily(
    td.Categorical(probs=torch.tensor([0.3, 0.7])),
    td.MultivariateNormal(torch.tensor([[0.0, 1.0], [2.0, -1.0]]), torch.stack([torch.eye(2), 0.1 * torch.eye(2)])),
)
COV = np.array([[1.0, 0.2], [0.2, 1.0]])
SCIPY = st.multivariate_normal(np.array([0.0, 1.0]), COV)  # pyright: ignore[reportArgumentType]
# Two boxes that do not touch.
BOXES = td.MixtureSameFamily(
    td.Categorical(probs=torch.tensor([0.25, 0.75])),
    td.Independent(td.Uniform(torch.tensor([[0.0] * 2, [2.0] * 2]), torch.tensor([[1.0, 1.0], [3.0, 4.0]])), 1),
)


class Ring:
    """A user's own prior: no event shape, no support, no torch Distribution."""

    def sample(self, shape) -> Tensor:
        angle = 2 * math.pi * torch.rand(shape)
        return torch.stack([angle.cos(), angle.sin()], -1)

    def log_prob(self, theta: Tensor) -> Tensor:
        return -theta.square().sum(-1)


def sbi_prior(*parts):
    return process_prior(list(parts))[0]


# Every kind that can be written as plain data, with its dimension.
WRITABLE = {
    "Normal": (td.Normal(torch.zeros(2), ONE), 2),
    "Normal, one parameter": (td.Normal(0.5, 2.0), 1),
    "LogNormal": (td.LogNormal(torch.zeros(2), ONE), 2),
    "Uniform": (td.Uniform(-ONE, TWO), 2),
    "Gamma": (td.Gamma(TWO, ONE), 2),
    "Beta": (td.Beta(TWO, ONE), 2),
    "Exponential": (td.Exponential(TWO), 2),
    "HalfNormal": (td.HalfNormal(TWO), 2),
    "HalfCauchy": (td.HalfCauchy(TWO), 2),
    "Laplace": (td.Laplace(torch.zeros(2), TWO), 2),
    "Cauchy": (td.Cauchy(torch.zeros(2), TWO), 2),
    "StudentT": (td.StudentT(5 * ONE, torch.zeros(2), TWO), 2),
    "Dirichlet": (td.Dirichlet(torch.tensor([1.0, 2.0, 3.0])), 3),
    "MultivariateNormal": (td.MultivariateNormal(ONE, torch.tensor([[1.0, 0.4], [0.4, 0.5]])), 2),
    "Independent": (td.Independent(td.Normal(torch.zeros(2), ONE), 1), 2),
    "BoxUniform": (BoxUniform(-ONE, TWO), 2),
    "mixture": (MIXTURE, 2),
    "mixture, one parameter": (
        td.MixtureSameFamily(td.Categorical(torch.ones(2)), td.Normal(torch.tensor([0.0, 3.0]), ONE)),
        1,
    ),
    "mixture of boxes": (BOXES, 2),
    "list": ([td.Normal(0.0, 1.0), td.Uniform(0.0, 2.0), MIXTURE], 4),
    "nested list": ([[td.Normal(0.0, 1.0)], BoxUniform(-ONE, ONE)], 3),
    "sbi MultipleIndependent": (
        sbi_prior(
            td.Uniform(torch.zeros(1), torch.ones(1)),
            td.Gamma(torch.ones(1), torch.ones(1)),
            td.MultivariateNormal(torch.zeros(2), torch.eye(2)),
        ),
        4,
    ),
}
OTHER = {
    "scipy, one parameter": (st.gamma(2.0), 1),
    "scipy, one parameter each": (st.norm([0.0, 5.0], [1.0, 0.1]), 2),
    "scipy, multivariate": (SCIPY, 2),
    "own object": (Ring(), 2),
}
ALL = {**WRITABLE, **OTHER}


# --- draws --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_draws_repeat_and_leave_the_global_state_alone(name):
    given, dim = ALL[name]
    prior = priors.as_prior(given)
    assert priors.dim_of(prior) == dim
    torch.manual_seed(3)
    before, before_numpy = torch.get_rng_state(), np.random.get_state(legacy=True)[1].copy()  # noqa: NPY002  # pyright: ignore[reportArgumentType]
    one, two, other = (priors.sample(prior, 50, seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(before_numpy, np.random.get_state()[1])  # noqa: NPY002  # pyright: ignore[reportArgumentType]
    assert one.shape == (50, dim)
    assert one.dtype == torch.float32
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    log_p = priors.log_prob(prior, one)
    assert log_p.shape == (50,)
    assert bool(torch.isfinite(log_p).all())
    # Any leading shape will do.
    assert torch.allclose(priors.log_prob(prior, one.reshape(5, 10, dim)), log_p.reshape(5, 10))
    assert torch.allclose(priors.log_prob(prior, one[0]), log_p[0])


def test_draws_carry_no_gradient():
    location = torch.zeros(2, requires_grad=True)
    assert not priors.sample(priors.as_prior(td.Normal(location, 1.0)), 3, 0).requires_grad


# --- densities ----------------------------------------------------------------------------------------------


def test_list_is_the_product_of_its_parts():
    parts = [td.Normal(0.0, 1.0), td.Uniform(0.0, 2.0), MIXTURE]
    prior = priors.as_prior(parts)
    theta = priors.sample(prior, 20, 0)
    columns = (theta[:, 0], theta[:, 1], theta[:, 2:])
    total = torch.stack([part.log_prob(column) for part, column in zip(parts, columns, strict=True)]).sum(0)
    assert torch.allclose(priors.log_prob(prior, theta), total, atol=1e-6)
    outside = torch.tensor([0.0, 2.5, 0.0, 0.0])
    assert float(priors.log_prob(prior, outside)) == -math.inf


def test_scipy_densities():
    theta = torch.tensor([[0.3, 5.1], [-2.0, 4.9]])
    exact = st.norm.logpdf(theta.numpy(), [0.0, 5.0], [1.0, 0.1]).sum(-1)
    value = priors.log_prob(priors.as_prior(st.norm([0.0, 5.0], [1.0, 0.1])), theta)
    assert torch.allclose(value, torch.as_tensor(exact, dtype=torch.float32), atol=1e-5)
    gamma = priors.as_prior(st.gamma(2.0))
    assert float(priors.log_prob(gamma, torch.tensor([-1.0]))) == -math.inf
    # Moments of 20,000 draws: standard error of the mean sqrt(2 / 20,000) = 0.01.
    assert float(priors.sample(gamma, 20_000, 0).mean()) == pytest.approx(2, abs=0.045)


@pytest.mark.parametrize(
    ("prior", "outside"),
    [
        (td.Uniform(-ONE, ONE), [0.0, 1.5]),
        (BoxUniform(-ONE, ONE), [0.0, 1.5]),
        (td.LogNormal(torch.zeros(2), ONE), [1.0, -0.1]),
        (td.Gamma(TWO, ONE), [1.0, -0.1]),
        (td.Beta(TWO, ONE), [0.5, 1.1]),
        (td.Exponential(ONE), [1.0, -0.1]),
        (td.HalfNormal(ONE), [1.0, -0.1]),
        (td.HalfCauchy(ONE), [1.0, -0.1]),
        (td.Dirichlet(torch.ones(3)), [0.5, 0.3, 0.3]),
        (td.Normal(torch.zeros(2), ONE), [math.nan, 0.0]),
        (td.TransformedDistribution(td.Normal(ONE, ONE), [td.ExpTransform()]), [1.0, -0.1]),
        (MIXTURE, [math.nan, 0.0]),
        (BOXES, [1.5, 1.5]),
    ],
)
@pytest.mark.parametrize("validate", [True, False])
def test_minus_infinity_outside_the_support(prior, outside, validate):
    # Torch raises when a prior validates its arguments, and some priors give finite numbers when they do not.
    prior = priors.as_prior(prior)
    for part in (prior, getattr(prior, "base_dist", prior)):
        part._validate_args = validate
    inside = priors.sample(prior, 3, 0)
    theta = torch.cat([inside[:2], torch.tensor([outside]), inside[2:]])
    value = priors.log_prob(prior, theta)
    assert float(value[2]) == -math.inf
    assert bool(torch.isfinite(value[[0, 1, 3]]).all())
    assert torch.allclose(value[[0, 1, 3]], priors.log_prob(prior, inside))


def test_mixture_of_boxes_has_the_density_of_each_box():
    theta = torch.tensor([[0.5, 0.5], [2.5, 3.5], [0.5, 2.5]])
    exact = torch.tensor([0.25, 0.75 / 2, 0.0]).log()
    assert torch.allclose(priors.log_prob(BOXES, theta), exact)
    # One parameter, where torch makes the mixture independent.
    line = td.MixtureSameFamily(
        td.Categorical(torch.ones(2)), td.Uniform(torch.tensor([0.0, 5.0]), torch.tensor([1.0, 9.0]))
    )
    value = priors.log_prob(priors.as_prior(line), torch.tensor([[0.5], [6.0], [3.0]]))
    assert torch.allclose(value, torch.tensor([1 / 2, 1 / 8, 0.0]).log())


def test_mixture_density_and_gradient_are_torchs():
    theta = priors.sample(MIXTURE, 30, 1).requires_grad_(True)
    ours, theirs = priors.log_prob(MIXTURE, theta), MIXTURE.log_prob(theta)
    assert torch.allclose(ours, theirs, atol=1e-5)
    (one,) = torch.autograd.grad(ours.sum(), theta, retain_graph=True)
    (two,) = torch.autograd.grad(theirs.sum(), theta)
    assert torch.allclose(one, two, atol=1e-4)


def test_gradients_are_finite_beside_the_support():
    component = td.Independent(td.LogNormal(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), 1.0), 1)
    prior = td.MixtureSameFamily(td.Categorical(torch.ones(2)), component)
    theta = torch.tensor([[0.5, 0.5], [-9.0, 9.0]], requires_grad=True)
    value = priors.log_prob(prior, theta)
    assert torch.equal(torch.isfinite(value), torch.tensor([True, False]))
    (gradient,) = torch.autograd.grad(value[0], theta)
    assert bool(torch.isfinite(gradient).all())
    assert bool((gradient[0] != 0).all())


# --- plain data ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITABLE)
def test_round_trip_through_json(name):
    given, dim = WRITABLE[name]
    prior = priors.as_prior(given)
    again = priors.from_dict(json.loads(json.dumps(priors.to_dict(prior))))
    assert again is not None
    assert priors.dim_of(again) == dim
    theta = priors.sample(prior, 100, 5)
    # The same numbers: float32 survives JSON exactly.
    assert torch.equal(priors.sample(again, 100, 5), theta)
    assert torch.allclose(priors.log_prob(again, theta), priors.log_prob(prior, theta), atol=1e-5)
    # Far out, both agree too (-inf for bounded priors).
    far = 50 * torch.ones(1, dim)
    assert torch.allclose(priors.log_prob(again, far), priors.log_prob(prior, far))


def test_sbi_wrappers_are_written_as_what_they_wrap():
    double = process_prior(td.MultivariateNormal(torch.zeros(2).double(), torch.eye(2).double()))[0]
    data = priors.to_dict(double)
    assert data is not None
    assert data["type"] == "MultivariateNormal"


@pytest.mark.parametrize("name", OTHER)
def test_what_is_not_plain_data_is_not_written(name):
    assert priors.to_dict(priors.as_prior(OTHER[name][0])) is None
    assert priors.to_dict(priors.as_prior([td.Normal(0.0, 1.0), OTHER[name][0]])) is None


def test_subclasses_are_not_mistaken_for_their_parents():
    class Shifted(td.Normal):
        def log_prob(self, value):
            return super().log_prob(value - 1)

    assert priors.to_dict(priors.as_prior(Shifted(torch.zeros(2), torch.ones(2)))) is None


def test_none_and_unknown_types():
    assert priors.from_dict(None) is None
    with pytest.raises(InputError, match="unknown prior type 'Horseshoe'"):
        priors.from_dict({"type": "Horseshoe"})


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3.0, "got float"),
        (torch.zeros(3), "got Tensor"),
        ([], "empty list"),
        ([td.Normal(0.0, 1.0), "uniform"], "got str"),
        (td.Normal(torch.zeros(2, 2), 1.0), r"event shape \(\) and batch shape \(2, 2\)"),
        (td.MultivariateNormal(torch.zeros(3, 2), torch.eye(2)), r"shape \(2,\) and batch shape \(3,\)"),
        (st.norm(np.zeros((2, 2))), r"gives \(2, 2\)"),
    ],
)
def test_what_is_no_prior_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        priors.as_prior(given)


class ByNumpy:
    """Draws from numpy's global state; its density leaves torch."""

    def sample(self, shape):
        return np.random.standard_normal((*shape, 2))  # noqa: NPY002

    def log_prob(self, theta):
        return st.norm.logpdf(theta.numpy()).sum(-1)


def test_a_prior_of_numpy_honours_the_seed_and_takes_gradients():
    prior = priors.as_prior(ByNumpy())
    assert torch.equal(priors.sample(prior, 3, 0), priors.sample(prior, 3, 0))
    assert not torch.equal(priors.sample(prior, 3, 0), priors.sample(prior, 3, 1))
    theta = torch.tensor([[0.5, -1.0]], requires_grad=True)
    want = torch.distributions.Normal(0.0, 1.0).log_prob(theta).sum(-1)
    assert torch.allclose(priors.log_prob(prior, theta), want)
    assert priors.dim_of(prior) == 2


@pytest.mark.parametrize("as_list", [False, True])
def test_priors_in_double_precision_take_theta_in_single(as_list):
    low, high = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    given = [td.Uniform(low[:1], high[:1]), td.Uniform(low[1:], high[1:])] if as_list else td.Uniform(low, high)
    prior = priors.as_prior(given)
    value = priors.log_prob(prior, torch.tensor([[0.5, 0.5], [0.5, 2.0]]))
    assert value.dtype == torch.float32
    assert value.tolist() == [0.0, -math.inf]


def test_a_list_can_be_drawn_from():
    assert priors.sample([td.Normal(0.0, 1.0), td.Normal(5.0, 1.0)], 4, seed=0).shape == (4, 2)


def test_the_support_of_a_transformed_prior_is_that_of_what_it_transforms():
    # torch's own support of a shifted Gamma is the whole line, and its log_prob raises below the shift.
    gamma = td.Gamma(torch.full((2,), 2.0), torch.ones(2))
    shifted = td.Independent(td.TransformedDistribution(gamma, td.AffineTransform(torch.tensor([-1.0, 3.0]), 2.0)), 1)
    theta = torch.tensor([[-0.5, 4.0], [-1.5, 4.0], [-0.5, 2.5]])
    value = priors.log_prob(shifted, theta)
    want = gamma.log_prob(torch.tensor([0.25, 0.5])).sum() - 2 * math.log(2.0)
    assert float(value[0]) == pytest.approx(float(want), abs=1e-5)
    assert value[1:].tolist() == [-math.inf, -math.inf]
    log_normal = td.Independent(td.LogNormal(torch.zeros(2), torch.ones(2)), 1)
    assert torch.equal(torch.isfinite(priors.log_prob(log_normal, theta)), torch.tensor([False, False, False]))
    assert bool(torch.isfinite(priors.log_prob(log_normal, theta.abs())).all())


def test_scipy_without_parameters_and_density_estimates_are_named():
    with pytest.raises(InputError, match="scipy's lognorm has no parameters yet: call it with them"):
        priors.as_prior([st.lognorm])
    with pytest.raises(InputError, match="pass the samples themselves"):
        priors.as_prior(st.gaussian_kde(np.random.default_rng(0).normal(size=(2, 50))))


def test_one_parameter_of_sbi():
    # sbi wraps a distribution of batch shape (1,) and sums over that axis itself.
    wrapped = process_prior(td.Normal(torch.tensor([1.0]), torch.tensor([2.0])))[0]
    prior = priors.as_prior(wrapped)
    theta = priors.sample(prior, 5, seed=0)
    assert theta.shape == (5, 1)
    exact = td.Normal(1.0, 2.0).log_prob(theta[:, 0])
    assert torch.allclose(priors.log_prob(prior, theta), exact)
    assert priors.to_dict(prior) == priors.to_dict(priors.as_prior(td.Normal(torch.tensor([1.0]), torch.tensor([2.0]))))


# Fingerprints and keys.


NAMED = {**{name: prior for name, (prior, _) in WRITABLE.items()}, "own object": Ring(), "scipy": SCIPY}


@pytest.mark.parametrize("name", NAMED)
def test_a_fingerprint_knows_its_density_again(name):
    prior = priors.as_prior(NAMED[name])
    points = torch.cat([priors.sample(prior, 16, seed=0), torch.full((1, priors.dim_of(prior)), -50.0)])
    kept = priors.fingerprint(lambda theta: priors.log_prob(prior, theta), points)
    assert len(kept) == 17
    assert max(kept) == 0
    assert json.loads(json.dumps(kept, allow_nan=False)) == kept

    def shifted(theta: Tensor) -> Tensor:  # the constant does not count, nor does rounding
        return priors.log_prob(prior, theta) * (1 + 1e-5) + 3.0

    def bent(theta: Tensor) -> Tensor:
        return priors.log_prob(prior, theta) + 0.05 * torch.linspace(0, 1, 17)

    assert priors.same_fingerprint(kept, priors.fingerprint(shifted, points))
    assert not priors.same_fingerprint(kept, priors.fingerprint(bent, points))
    assert not priors.same_fingerprint(kept, kept[:-1])


def test_a_fingerprint_sees_where_a_density_is_zero():
    points = torch.linspace(-1, 1, 9)[:, None]
    box = priors.as_prior(td.Uniform(-torch.ones(1), torch.ones(1)))
    half = priors.as_prior(td.Uniform(torch.zeros(1), torch.ones(1)))
    prints = [priors.fingerprint(lambda theta, p=p: priors.log_prob(p, theta), points) for p in (box, half)]
    assert not priors.same_fingerprint(*prints)
    nowhere = priors.fingerprint(lambda theta: torch.full((len(theta),), -math.inf), points)
    assert set(nowhere) == {-1e4}


@pytest.mark.parametrize("name", NAMED)
def test_a_key_is_the_same_for_the_same_prior(name):
    given = NAMED[name]
    key = priors.key(priors.as_prior(given))
    assert key == priors.key(priors.as_prior(given))
    assert json.loads(json.dumps(key)) == key


def test_a_key_sees_any_change_of_a_prior():
    class Wider(Ring):
        def log_prob(self, theta: Tensor) -> Tensor:
            return -0.99 * theta.square().sum(-1)

    assert priors.key(Wider()) != priors.key(Ring())
    normals = [
        priors.key(priors.as_prior(td.Normal(torch.zeros(2), torch.tensor([1.0, s])))) for s in (1.0, 1.0 + 1e-6)
    ]
    assert normals[0] != normals[1]
