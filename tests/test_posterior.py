"""The posterior object: shapes, seeds, chunks, bounded priors, units, densities, prediction, refusals."""

from __future__ import annotations

import math

import pytest
import scipy.stats as st
import torch
from exact import GaussianBase, exact_posterior, gaussian_posterior
from sbi.utils import BoxUniform
from sbi.utils.user_input_checks import process_prior
from torch import Tensor
from torch.distributions import Normal, Uniform

import reprior.diffusion.sampler as sampler_module
import reprior.posterior as module
from reprior import adapt, priors
from reprior.diffusion.denoiser import Base, Denoiser
from reprior.diffusion.sampler import PAPER_SAMPLER, Sampler
from reprior.errors import InputError
from reprior.info import Info
from reprior.networks.mlp import MLPBase, MLPSettings
from reprior.posterior import Posterior, Scales, check_x
from reprior.standardizer import Standardizer

X = torch.tensor([0.8, -0.4, 0.1])
NAN = math.nan


def unit(d: int) -> Standardizer:
    return Standardizer(torch.zeros(d), torch.ones(d))


def flat_posterior(prior, c: float = 0.25, d: int = 1) -> Posterior:
    """theta | x ~ N(x, c) before the prior's bounds: the likelihood of x = theta + N(0, c) under a flat prior."""
    names = tuple(f"theta_{i + 1}" for i in range(d))
    base = GaussianBase(1e8 * torch.eye(d), c)
    return Posterior(base, Scales(unit(d), unit(d)), prior, None, names, Sampler(steps=64))


# --- draws --------------------------------------------------------------------------------------------------


def test_draws_are_from_the_posterior():
    posterior, prior = gaussian_posterior(dim=3, c=0.3, rho=0.5)
    n = 20_000
    theta = posterior.sample((n,), X, seed=1, sampler=Sampler(steps=64))
    exact = exact_posterior(prior, X, 0.3)
    spread = exact.covariance_matrix.diagonal().sqrt()
    # Standard errors: 0.7 % of a standard deviation for the mean, 1 % of a variance; 1 % more for 64 steps.
    assert float(((theta.mean(0) - exact.loc) / spread).abs().max()) < 4 / math.sqrt(n)
    error = (torch.cov(theta.T) - exact.covariance_matrix) / exact.covariance_matrix.max()
    assert float(error.abs().max()) < 4 * math.sqrt(2 / n) + 0.01


def test_it_shows_itself_in_a_line():
    posterior, _ = gaussian_posterior(dim=2)
    assert repr(posterior) == "Posterior(p(theta_1, theta_2 | x of 2), GaussianBase, 4,000 simulations)"
    assert repr(flat_posterior(Uniform(0.0, 1.0))) == "Posterior(p(theta_1 | x of 1), GaussianBase, no simulations)"
    adapted = adapt(posterior, Normal(torch.zeros(2), 0.5), "transport")
    assert repr(adapted) == f"AdaptedPosterior(transport: {adapted.why}; {posterior!r})"


def test_shapes():
    posterior, _ = gaussian_posterior()
    assert (posterior.dim, posterior.x_dim) == (3, 3)
    for x in (X, X.unsqueeze(0), X.double()):
        assert posterior.sample((7,), x).shape == (7, 3)
    assert posterior.sample((2, 5), X).shape == (2, 5, 3)
    assert posterior.sample((), X).shape == (3,)
    many = torch.stack([X, -X])
    assert posterior.sample_batched((7,), many).shape == (7, 2, 3)
    assert posterior.sample_batched((2, 5), many).shape == (2, 5, 2, 3)
    assert posterior.sample_batched((7,), X).shape == (7, 1, 3)
    assert posterior.sample((7,), X).dtype == torch.float32


def test_seed_repeats_and_without_it_torch_rules():
    posterior, _ = gaussian_posterior()
    one, two, other = (posterior.sample((5,), X, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    posterior.sample((5,), X, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(0)
    first, second = posterior.sample((5,), X), posterior.sample((5,), X)
    torch.manual_seed(0)
    assert torch.equal(first, posterior.sample((5,), X))
    assert not torch.equal(first, second)


def test_each_observation_of_a_batch_has_its_own_posterior():
    posterior, prior = gaussian_posterior(c=0.3)
    many = torch.stack([X, -3 * X, 2 + X])
    theta = posterior.sample_batched((4_000,), many, seed=0)
    for k, x in enumerate(many):
        exact = exact_posterior(prior, x, 0.3)
        spread = float(exact.covariance_matrix[0, 0]) ** 0.5
        assert float((theta[:, k].mean(0) - exact.loc).abs().max()) < 4 * spread / math.sqrt(4_000)


def test_chunks_bound_the_rows_and_share_the_generator(monkeypatch):
    posterior, _ = gaussian_posterior()
    rows: list[int] = []
    bound_type = type(posterior.condition(X.unsqueeze(0)))
    mean = bound_type.mean

    def counted(self, z, s):
        rows.append(z.shape[0] * z.shape[1])
        return mean(self, z, s)

    monkeypatch.setattr(bound_type, "mean", counted)
    for one in (module, sampler_module):
        monkeypatch.setattr(one, "ROWS", 30)
    theta = posterior.sample((100,), X, seed=0)
    assert max(rows) == 30
    assert len(theta.unique(dim=0)) == 100  # no chunk repeats another
    rows.clear()
    assert posterior.sample_batched((20,), torch.stack([X] * 4), seed=0).shape == (20, 4, 3)
    assert max(rows) == 28  # seven draws for four observations
    rows.clear()
    posterior.log_prob(torch.zeros(20, 3), X, steps=2)
    assert max(rows) == 7


def test_scales_bring_the_users_units():
    # theta_user = 10 + 4 theta and x_user = -3 + 0.5 x around the standardised problem.
    posterior, prior = gaussian_posterior(dim=3, c=0.3)
    scales = Scales(
        Standardizer(torch.full((3,), 10.0), torch.full((3,), 4.0)),
        Standardizer(torch.full((3,), -3.0), torch.full((3,), 0.5)),
    )
    moved = Normal(torch.full((3,), 10.0), 4.0)
    user = Posterior(posterior.base, scales, priors.as_prior(moved), None, posterior.parameters)
    x_user = -3 + 0.5 * X
    assert torch.allclose(user.sample((50,), x_user, seed=3), 10 + 4 * posterior.sample((50,), X, seed=3), atol=1e-4)
    theta = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    exact = exact_posterior(prior, X, 0.3).log_prob(theta) - 3 * math.log(4)
    assert torch.allclose(user.log_prob(10 + 4 * theta, x_user), exact, atol=0.02)


def test_info_says_what_was_done():
    posterior, _ = gaussian_posterior()
    theta, info = posterior.sample((6,), X, seed=0, return_info=True)
    assert theta.shape == (6, 3)
    assert isinstance(info, Info)
    assert (info.method, info.n, info.observations, info.rejected) == ("base", 6, 1, 0.0)
    assert info.seconds > 0
    _, info = posterior.sample_batched((2, 3), torch.stack([X] * 4), return_info=True)
    assert (info.n, info.observations) == (6, 4)
    assert "6 for 4 observation(s)" in str(info)


def test_the_sampler_can_be_chosen():
    posterior = flat_posterior(priors.as_prior(Normal(0.0, 1e4)), c=0.02**2)
    # The paper's sampler inflates a standard deviation of 0.02 by 32 %.
    paper = posterior.sample((20_000,), torch.zeros(1), seed=0, sampler=PAPER_SAMPLER)
    assert float(paper.std()) == pytest.approx(0.0264, abs=0.0006)
    assert float(posterior.sample((20_000,), torch.zeros(1), seed=0).std()) == pytest.approx(0.02, rel=0.03)


# --- bounded priors -----------------------------------------------------------------------------------------

BOX = BoxUniform(torch.tensor([-1.0]), torch.tensor([1.0]))
BOUNDED = {
    "BoxUniform": BOX,
    "list": priors.as_prior([Uniform(-1.0, 1.0)]),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_draws_stay_inside_the_support(name):
    posterior = flat_posterior(BOUNDED[name])
    n, x, sd = 10_000, torch.tensor([0.9]), 0.5
    theta, info = posterior.sample((n,), x, seed=2, return_info=True)
    assert float(theta.abs().max()) <= 1
    exact = st.truncnorm((-1 - 0.9) / sd, (1 - 0.9) / sd, loc=0.9, scale=sd)
    # Standard error of the mean sd / sqrt(n); 1 % of sd more for the steps.
    assert float(theta.mean()) == pytest.approx(exact.mean(), abs=4 * exact.std() / math.sqrt(n) + 0.005)
    assert float(theta.std()) == pytest.approx(exact.std(), rel=4 / math.sqrt(2 * n) + 0.01)
    # About 28,000 draws in all: the rejected fraction has a standard error of 0.003.
    outside = 1 - (st.norm.cdf(0.1 / sd) - st.norm.cdf(-1.9 / sd))
    assert info.rejected == pytest.approx(outside, abs=0.015)


@pytest.mark.parametrize("kind", ["BoxUniform", "sbi list"])
def test_two_parameters_and_several_observations_inside_a_box(kind):
    side = Uniform(torch.tensor([-1.0]), torch.tensor([1.0]))
    box = BoxUniform(-torch.ones(2), torch.ones(2)) if kind == "BoxUniform" else process_prior([side, side])[0]
    posterior = flat_posterior(box, c=0.25, d=2)
    many = torch.tensor([[0.0, 0.0], [1.2, -1.2], [0.9, 0.0]])
    theta, info = posterior.sample_batched((500,), many, seed=0, sampler=Sampler(steps=16), return_info=True)
    assert theta.shape == (500, 3, 2)
    assert float(theta.abs().max()) <= 1
    assert 0.1 < info.rejected < 0.9
    # Each observation keeps its own draws: their means differ by several standard errors (0.02).
    assert float(theta[:, 1, 0].mean() - theta[:, 0, 0].mean()) > 0.2
    assert float(theta[:, 1, 1].mean() - theta[:, 2, 1].mean()) < -0.2


def test_an_observation_far_from_the_support_is_an_error():
    with pytest.raises(InputError, match=r"100\.0 % of the draws fall outside the prior's support"):
        flat_posterior(BOX).sample((10,), torch.tensor([30.0]), seed=0, sampler=Sampler(steps=4))


def test_density_is_minus_infinity_outside_the_support():
    posterior = flat_posterior(BOX)
    value = posterior.log_prob(torch.tensor([[0.5], [1.5], [-1.01]]), torch.tensor([0.2]))
    assert torch.isfinite(value).tolist() == [True, False, False]
    # The density of the samples: N(0.2, 0.5^2) cut to [-1, 1], which keeps 0.937 of it. That share comes from 2,000 draws:
    # standard error 0.006.
    law = Normal(0.2, 0.5)
    kept = float(law.cdf(torch.tensor(1.0)) - law.cdf(torch.tensor(-1.0)))
    assert float(value[0]) == pytest.approx(float(law.log_prob(torch.tensor(0.5))) - math.log(kept), abs=0.025)


# --- densities ----------------------------------------------------------------------------------------------


def test_density_takes_any_leading_shape():
    posterior, prior = gaussian_posterior()
    theta = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0))
    value = posterior.log_prob(theta, X)
    assert value.shape == (2, 3)
    assert torch.allclose(value, exact_posterior(prior, X, 0.3).log_prob(theta), atol=0.02)
    assert posterior.log_prob(theta[0, 0], X).shape == ()
    assert float(posterior.log_prob(theta[0, 0], X)) == pytest.approx(float(value[0, 0]), abs=1e-3)


def test_density_checks_theta_and_x():
    posterior, _ = gaussian_posterior()
    with pytest.raises(InputError, match=r"theta needs 3 entries in its last axis; got shape \(4, 2\)"):
        posterior.log_prob(torch.zeros(4, 2), X)
    with pytest.raises(InputError, match="one observation is needed"):
        posterior.log_prob(torch.zeros(4, 3), torch.stack([X, X]))


# --- prediction ---------------------------------------------------------------------------------------------


class Joint(Base):
    """The exact joint denoiser of theta and x_2 given x_1, for theta, x_1, x_2 of unit variance and correlations."""

    def __init__(self) -> None:
        super().__init__()
        self.dim, self.x_dim, self.noise, self.s_min, self.s_max = 1, 2, "scalar", 1e-3, 40.0
        self.unused = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
        joint = torch.tensor([[1.0, 0.8, 0.6], [0.8, 1.0, 0.7], [0.6, 0.7, 1.0]]).double()
        self.slope = joint[[0, 2], 1]
        self.cov = joint[[0, 2]][:, [0, 2]] - self.slope.outer(self.slope)

    def condition(self, x: Tensor, predict: bool = False) -> Denoiser:
        base = self

        class Bound(Denoiser):
            dim, observations, noise, s_min, s_max = 2, len(x), "scalar", 1e-3, 40.0

            def mean(self, z: Tensor, s: Tensor) -> Tensor:
                m = x[:, :1].double() * base.slope
                gain = base.cov @ torch.linalg.inv(base.cov + float(s) ** 2 * torch.eye(2).double())
                return (m + (z.double() - m) @ gain.T).to(z)

        assert predict
        bound = Bound()
        bound.x = x
        return bound

    def config(self) -> dict:
        return {"network": "joint"}


def test_prediction_fills_what_is_missing():
    scales = Scales(unit(1), Standardizer(torch.tensor([1.0, -2.0]), torch.tensor([2.0, 10.0])))
    posterior = Posterior(Joint(), scales, priors.as_prior(Normal(0.0, 1.0)), None, ("a",), Sampler(steps=64))
    x = torch.tensor([1.0 + 2.0 * 0.5, NAN])  # 0.5 in standard units
    n = 10_000
    theta, full = posterior.predict((n,), x, seed=0)
    assert theta.shape == (n, 1)
    assert full.shape == (n, 2)
    assert torch.allclose(full[:, 0], x[0].expand(n))
    both = torch.cat([theta, (full[:, 1:] + 2) / 10], 1)
    # Standard errors of means 0.01 sd and of covariances 1.4 %; 1 % more for the steps.
    assert torch.allclose(both.mean(0), torch.tensor([0.4, 0.35]), atol=0.04)
    assert torch.allclose(torch.cov(both.T), Joint().cov.float(), atol=0.07 * 0.6)
    theta, full, info = posterior.predict((2, 3), x, seed=0, return_info=True)
    assert (theta.shape, full.shape, info.n) == ((2, 3, 1), (2, 3, 2), 6)
    with pytest.raises(InputError, match="nothing to predict"):
        posterior.predict((3,), torch.zeros(2))


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2), r"x needs shape \(3,\) or \(K, 3\); got \(2,\)"),
        (torch.zeros(1, 4), r"got \(1, 4\)"),
        (torch.zeros(1, 1, 3), r"got \(1, 1, 3\)"),
        (torch.tensor(0.0), r"got \(\)"),
        (torch.zeros(2, 3), "one observation is needed here; got 2. Use sample_batched"),
        (torch.tensor([0.0, math.inf, 0.0]), r"infinite entries at \[\[0, 1\]\]"),
    ],
)
def test_wrong_observations_are_refused(x, message):
    posterior, _ = gaussian_posterior()
    with pytest.raises(InputError, match=message):
        posterior.sample((5,), x)


def test_missing_entries_need_a_network_that_takes_them():
    base = MLPBase(2, 3, MLPSettings(width=8, blocks=1)).requires_grad_(False)
    prior = priors.as_prior(Normal(torch.zeros(2), 1.0))
    posterior = Posterior(base, Scales(unit(2), unit(3)), prior, None, ("a", "b"))
    x = torch.tensor([0.0, NAN, 0.0])
    with pytest.raises(InputError, match="missing entries"):
        posterior.sample((5,), x)
    with pytest.raises(InputError, match="missing entries"):
        posterior.sample_batched((5,), x)
    with pytest.raises(InputError, match="cannot predict x"):
        posterior.predict((5,), x)


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_an_empty_sample_shape_is_refused(shape):
    posterior, _ = gaussian_posterior()
    with pytest.raises(InputError, match="at least one sample"):
        posterior.sample(shape, X)


def test_check_x_keeps_values_and_makes_rows():
    assert torch.equal(check_x(X, 3), X.unsqueeze(0))
    assert check_x(torch.zeros(4, 3).double(), 3).dtype == torch.float32
    assert bool(torch.isnan(check_x(torch.tensor([NAN, 0.0]), 2, missing=True)).any())


# --- simulations --------------------------------------------------------------------------------------------


def test_simulations_can_be_attached(monkeypatch):
    posterior, prior = gaussian_posterior(dim=2)
    bare = Posterior(posterior.base, posterior.scales, prior, None, ("a", "b"))
    theta = priors.sample(prior, 30, 0)
    kept = bare.with_simulations(theta, theta + 1).simulations
    assert bare.simulations is None
    assert kept is not None
    assert torch.equal(kept.theta, theta)
    assert torch.equal(kept.x, theta + 1)
    assert kept.parameters == ("a", "b")
    x = theta + 1
    x[0, 0] = NAN  # failed, as in training; or missing, where the base takes that
    for takes_missing, rows in ((False, 29), (True, 30)):
        monkeypatch.setattr(posterior.base, "takes_missing", takes_missing, raising=False)
        assert len(bare.with_simulations(theta, x).simulations) == rows  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError):
        bare.with_simulations(theta[:, :1], theta)
