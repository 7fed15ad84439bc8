"""The change of prior: every form of q, the support check, and what is known of log r before anything is trained."""

from __future__ import annotations

import functools
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats
from torch.distributions import Independent, Laplace, MultivariateNormal, Normal, Uniform

import reprior.quadratic
import reprior.ratio_from_samples
from reprior import priors
from reprior.change import PriorChange
from reprior.errors import InputError, SupportError
from reprior.networks.fit import Training
from reprior.standardizer import Standardizer
from reprior.target import make_change, outside_fraction

stats: Any = scipy_stats  # its annotations take numbers only

SCALE = Standardizer(torch.tensor([1.0, -2.0]), torch.tensor([2.0, 0.5]))
P = Independent(Normal(torch.tensor([1.0, -2.0]), torch.tensor([2.0, 0.5])), 1)
Q = Independent(Normal(torch.tensor([2.0, -2.0]), torch.tensor([1.0, 0.4])), 1)
BOX = priors.as_prior(Uniform(torch.zeros(2), torch.ones(2)))
UNIT = Standardizer(torch.full((2,), 0.5), torch.full((2,), 0.29))


def draws(law, n: int, seed: int = 0) -> torch.Tensor:
    return priors.sample(law, n, seed)


@pytest.fixture
def short(monkeypatch):
    """Learns from samples in a second instead of a minute."""
    quick = Training(steps=80, batch=256, learning_rate=3e-3, ema=0.95, evaluate_every=40)
    learn = functools.partial(reprior.ratio_from_samples.learn_log_ratio, training=quick)
    monkeypatch.setattr(reprior.ratio_from_samples, "learn_log_ratio", learn)


# --- distributions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        Q,
        Normal(Q.mean, Q.stddev),
        [Normal(2.0, 1.0), Normal(-2.0, 0.4)],
        MultivariateNormal(Q.mean, torch.diag(Q.variance)),
    ],
    ids=["independent", "batch", "list", "multivariate"],
)
def test_distribution_in_any_form(target):
    change = make_change(P, target, SCALE, seed=0)
    theta = draws(P, 50)
    want = Q.log_prob(theta) - P.log_prob(theta)
    assert change.kind == "distribution"
    assert change.outside == 0.0
    assert torch.allclose(change.log_r(theta), want, atol=1e-4)
    assert torch.allclose(change(SCALE.forward(theta)), want, atol=1e-4)
    assert change.differentiable
    assert not change.same


def test_only_the_parameters_count_in_standardised_units():
    change = make_change(P, Q, SCALE, 0)
    z = torch.randn(7, 3, 5, generator=torch.Generator().manual_seed(0))
    assert change(z).shape == (7, 3)
    assert torch.equal(change(z), change(z[..., :2]))


def test_draws_beyond_the_simulations_have_no_weight():
    # The rarest of 50,000 draws of a Gaussian in two dimensions lies about sqrt(2 log 50,000) = 4.65 sd out, and the
    # outer 1 % of the target sqrt(2 log 100) = 3.03 of its own, 6.07 of p's.
    wide = Independent(Normal(P.mean, 2 * P.stddev), 1)
    change = make_change(P, wide, SCALE, 0)
    out = torch.cat([torch.linspace(0, 3.8, 995), torch.tensor([6.5, 7.0, 10.0, 100.0, 1e4])])
    theta = P.mean + out[:, None] * P.stddev / 2**0.5
    log_w = change.log_w(SCALE.forward(theta))
    assert torch.allclose(log_w[:-5], change.log_r(theta)[:-5], atol=1e-3)
    assert bool((log_w[-5:] == -torch.inf).all())


def test_draws_beyond_the_simulations_count_where_the_target_has_its_mass():
    # The target lies five standard deviations of p away: its own draws are no strays.
    far = Independent(Normal(P.mean + 5 * P.stddev, 0.5 * P.stddev), 1)
    change = make_change(P, far, SCALE, 0)
    theta = torch.cat([P.mean.expand(995, 2), priors.sample(far, 5, 0)])
    assert bool(torch.isfinite(change.log_w(SCALE.forward(theta))).all())


def test_a_posterior_that_lies_beyond_the_simulations_keeps_its_draws():
    change = make_change(P, Q, SCALE, 0)
    near, far = P.mean.expand(400, 2), P.mean + torch.linspace(6, 8, 400)[:, None] * P.stddev
    log_w = change.log_w(SCALE.forward(torch.stack([near, far], 1)))
    assert bool(torch.isfinite(log_w).all())


def test_what_remains_of_a_change_is_the_rest_of_log_r():
    change = make_change(P, Q, SCALE, 0)
    z = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    rest = change.minus(lambda u: u[..., 0] ** 2)
    assert torch.allclose(rest(z), change(z) - z[:, 0] ** 2, atol=1e-4)
    twice = rest.minus(change.quadratic)
    assert twice.whole is change
    assert torch.allclose(twice(z), -(z[:, 0] ** 2), atol=1e-3)
    # Which draws are strays is asked of the whole change: the rest alone does not know where q is.
    assert rest.lowest_log_q == change.lowest_log_q
    far = torch.cat([torch.zeros(995, 2), torch.full((5, 2), 9.0)])
    assert torch.equal(torch.isfinite(rest.log_w(far)), torch.isfinite(change.log_w(far)))
    assert not bool(torch.isfinite(rest.log_w(far))[-5:].any())
    assert pickle.loads(pickle.dumps(change.minus(change.quadratic)))(z).shape == (50,)


def test_what_is_known_of_a_change_is_found_once(monkeypatch):
    calls = []
    found = reprior.quadratic.find_quadratic
    monkeypatch.setattr(reprior.quadratic, "find_quadratic", lambda *a: calls.append(1) or found(*a))
    change = make_change(P, Q, SCALE, 0)
    assert calls == []  # not before it is asked for
    assert change.quadratics == [change.quadratic]
    assert change.quadratic is change.quadratic
    assert len(calls) == 1
    assert not change.cuts
    assert make_change(P, Uniform(P.mean - 0.1, P.mean + 0.1), SCALE, 0).cuts


def test_a_flat_prior_has_no_rare_draws():
    change = make_change(BOX, lambda theta: -theta.sum(-1), UNIT, 0)
    theta = priors.sample(BOX, 5_000, 1)
    assert torch.allclose(change.log_w(UNIT.forward(theta)), change.log_r(theta), atol=1e-3)


def test_scipy_prior_has_values_and_no_gradient():
    # log p alone is differentiable: autograd would give its slope as that of log r.
    frozen = stats.multivariate_normal([2.0, -2.0], [1.0, 0.16])
    change = make_change(P, frozen, SCALE, 0)
    theta = draws(P, 50)
    assert torch.allclose(change.log_r(theta), Q.log_prob(theta) - P.log_prob(theta), atol=1e-4)
    assert not change.differentiable
    assert not make_change(P, [stats.norm(2.0, 1.0), stats.norm(-2.0, 0.4)], SCALE, 0).differentiable
    assert make_change(P, Independent(Laplace(Q.mean, Q.stddev), 1), SCALE, 0).differentiable


# --- callables -------------------------------------------------------------------------------------------------------


def test_callable_up_to_a_constant():
    change = make_change(P, lambda theta: Q.log_prob(theta) + 100, SCALE, 0)
    theta = draws(P, 12).reshape(3, 4, 2)
    assert change.kind == "callable"
    assert change.target is None
    assert math.isnan(change.outside)
    assert torch.allclose(change.log_r(theta), Q.log_prob(theta) - P.log_prob(theta) + 100, atol=1e-3)
    assert change.log_r(theta.double()).dtype == torch.float64
    assert change.differentiable


def test_callable_that_leaves_torch_has_no_gradient():
    def by_numpy(theta: torch.Tensor) -> np.ndarray:
        values = theta.detach().numpy()
        return stats.norm(2.0, 1.0).logpdf(values[:, 0]) + stats.norm(-2.0, 0.4).logpdf(values[:, 1])

    change = make_change(P, by_numpy, SCALE, 0)
    theta = draws(P, 20)
    assert torch.allclose(change.log_r(theta), Q.log_prob(theta) - P.log_prob(theta), atol=1e-4)
    assert not change.differentiable


def test_network_in_single_precision_serves_as_log_density():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.SiLU(), torch.nn.Linear(4, 1), torch.nn.Flatten(0))
    change = make_change(P, network.requires_grad_(False), SCALE, 0)
    assert change.kind == "callable"
    assert change.differentiable
    assert change.log_r(draws(P, 5).double()).dtype == torch.float64


def test_callable_of_the_wrong_shape():
    with pytest.raises(InputError, match=r"must map theta of shape \(n, d\) to \(n,\); it gave \(16, 2\)"):
        make_change(P, lambda theta: theta, SCALE, 0)


def test_callable_without_mass_under_the_prior():
    with pytest.raises(SupportError, match="no mass on any of 1,000 draws"):
        make_change(P, lambda theta: torch.full((len(theta),), -torch.inf), SCALE, 0)


# --- samples ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("as_numpy", [False, True])
def test_samples_of_q(as_numpy):
    samples = draws(Q, 3_000)
    change = make_change(P, samples.numpy() if as_numpy else samples, SCALE, 0)
    assert change.kind == "samples"
    assert isinstance(change.log_ratio, torch.nn.Module)
    assert change.target is None
    assert change.differentiable
    theta = draws(Q, 500, 1)
    error = change.log_r(theta) - (Q.log_prob(theta) - P.log_prob(theta))
    assert float(error.abs().median()) < 0.2  # log r has sd 0.5 there


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (torch.zeros(200, 3), r"need shape \(n, 2\); got \(200, 3\)"),
        (torch.zeros(200), r"need shape \(n, 2\); got \(200,\)"),
        (torch.full((200, 2), torch.nan), "hold NaN or inf"),
        (torch.zeros(99, 2), "at least 100 samples of the target prior are needed; got 99"),
    ],
)
def test_unusable_samples(samples, message):
    with pytest.raises(InputError, match=message):
        make_change(P, samples, SCALE, 0)


def test_samples_outside_the_prior_are_counted():
    samples = torch.rand(1_000, 2, generator=torch.Generator().manual_seed(0))
    samples[:130, 0] += 1
    with pytest.raises(SupportError, match=r"13 % of the target prior's mass lies outside"):
        make_change(BOX, samples, UNIT, 0)


@pytest.mark.usefixtures("short")
def test_accepted_samples_outside_are_left_out():
    samples = torch.rand(1_000, 2, generator=torch.Generator().manual_seed(0))
    samples[:130, 0] += 1
    change = make_change(BOX, samples, UNIT, 0, accept_outside=True)
    assert change.outside == pytest.approx(0.13)
    inside = torch.tensor([[0.2, 0.5], [0.8, 0.5]])
    assert float(change.log_r(inside).abs().max()) < 0.5  # uniform on the box, like p


# --- support ---------------------------------------------------------------------------------------------------------


def test_mass_outside_the_prior_is_an_error_that_states_the_fraction():
    wide = Uniform(torch.zeros(2), torch.tensor([2.0, 1.0]))
    # Half of q lies outside; 10,000 draws say so within 0.5 %.
    with pytest.raises(SupportError, match=r"^(49|50)(\.\d)? % of .*pass accept_outside=True") as caught:
        make_change(BOX, wide, UNIT, 0)
    assert isinstance(caught.value, ValueError)


def test_all_of_q_outside_is_an_error_even_if_accepted():
    away = Uniform(torch.full((2,), 3.0), torch.full((2,), 4.0))
    with pytest.raises(SupportError, match=r"^100 % of"):
        make_change(BOX, away, UNIT, 0)
    with pytest.raises(SupportError, match="no mass inside the support of the training prior"):
        make_change(BOX, away, UNIT, 0, accept_outside=True)


def test_accepted_mass_outside_restricts_q():
    change = make_change(BOX, Uniform(torch.zeros(2), torch.tensor([2.0, 1.0])), UNIT, 0, accept_outside=True)
    assert change.outside == pytest.approx(0.5, abs=0.02)
    theta = torch.tensor([[0.5, 0.5], [1.5, 0.5], [0.5, -0.5]])
    assert change.log_r(theta).tolist() == [pytest.approx(-math.log(2)), -torch.inf, -torch.inf]
    assert change.inside(theta).tolist() == [True, False, False]
    kept = change.draw(2_000, seed=0)
    assert bool(change.inside(kept).all())
    assert len(kept) == pytest.approx(1_000, abs=100)


def test_narrow_q_inside_the_prior_is_fine():
    tiny = Uniform(torch.tensor([0.5, 0.5]), torch.tensor([0.51, 0.51]))  # one prior draw in 10,000
    change = make_change(BOX, tiny, UNIT, 0)
    assert change.outside == 0.0
    assert not change.same


def test_outside_fraction():
    theta = torch.tensor([[0.5, 0.5], [0.5, 1.5], [0.1, 0.1], [0.2, 0.9]])
    assert outside_fraction(BOX, theta, accept=True) == 0.25
    assert outside_fraction(BOX, theta[[0, 2, 3]], accept=False) == 0.0


def test_wrong_dimension():
    with pytest.raises(InputError, match="the target prior has 3 parameters; the posterior has 2"):
        make_change(P, Normal(torch.zeros(3), torch.ones(3)), SCALE, 0)


def test_what_is_no_prior_at_all():
    with pytest.raises(InputError, match="a prior is a torch Distribution"):
        make_change(P, "normal", SCALE, 0)


# --- q equal to p ----------------------------------------------------------------------------------------------------


def test_equal_priors_are_recognised():
    assert make_change(P, P, SCALE, 0).same
    assert make_change(P, lambda theta: P.log_prob(theta) - 7, SCALE, 0).same
    assert make_change(BOX, BOX, UNIT, 0).same
    nudged = Independent(Normal(P.mean + 0.001, P.stddev), 1)
    assert not make_change(P, nudged, SCALE, 0).same
    half = Uniform(torch.zeros(2), torch.tensor([0.5, 1.0]))  # constant where it has mass, but not everywhere
    assert not make_change(BOX, half, UNIT, 0).same


# --- draws of q ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [Q, lambda theta: Q.log_prob(theta)], ids=["distribution", "callable"])
def test_draws_of_q(target):
    change = make_change(P, target, SCALE, 0)
    theta = change.draw(4_000, seed=0)
    assert theta.shape == (4_000, 2)
    assert torch.equal(theta, change.draw(4_000, seed=0))
    # Resampled draws of p: 80,000 with a relative ESS of some .5; standard errors 1.6 % and 1.1 % of the sd.
    assert torch.allclose(theta.mean(0), Q.mean, atol=0.08)
    assert torch.allclose(theta.std(0), Q.stddev, rtol=0.06)


def test_undefined_ratios_count_as_no_mass():
    def poor(theta: torch.Tensor) -> torch.Tensor:
        return torch.where(theta[:, 0] > 0, theta[:, 0].log(), torch.tensor(torch.nan))

    change = make_change(P, poor, SCALE, 0)
    value = change.log_r(torch.tensor([[-1.0, -2.0], [1.0, -2.0]]))
    assert value[0] == -torch.inf
    assert bool(torch.isfinite(value[1]))
    assert isinstance(change, PriorChange)


def test_callable_of_numpy_need_not_detach():
    change = make_change(P, lambda theta: stats.norm(1.0, 1.0).logpdf(theta.numpy()).sum(-1), SCALE, 0)
    assert not change.differentiable
    assert torch.isfinite(change.log_r(draws(P, 20))).all()


def test_network_over_a_prior_in_double_precision():
    network = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Flatten(0))
    double = Independent(Normal(P.mean.double(), P.stddev.double()), 1)
    assert make_change(double, network, SCALE, 0).differentiable


def test_a_little_mass_outside_is_left_out_with_a_warning_and_more_is_refused():
    def target(sd: float):
        return Independent(Normal(torch.full((2,), 0.5), torch.full((2,), sd)), 1)

    assert 0 < make_change(BOX, target(0.5 / 3.9), UNIT, 0).outside < 1e-3  # 0.005 % beyond each of four sides
    # 0.135 % beyond each of four sides, by 10,000 draws: standard error 0.07 %.
    assert make_change(BOX, target(0.5 / 3.0), UNIT, 0).outside == pytest.approx(0.0054, abs=0.003)
    with pytest.raises(SupportError, match="lies outside the support"):
        make_change(BOX, target(0.5 / 2.5), UNIT, 0)  # 2.5 % in all
