"""AdaptedPosterior: samples, evidence ratio, log-density, correction and what it warns of, against closed forms."""

from __future__ import annotations

import math
import pickle
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from exact import exact_posterior, gaussian_posterior, problem_of
from sbi.diagnostics import run_sbc
from scipy import stats as scipy_stats
from torch import Tensor
from torch.distributions import Independent, Laplace, MultivariateNormal, Uniform

import reprior
from reprior.adapted import AdaptedPosterior
from reprior.correction import freeze
from reprior.diffusion.sampler import Sampler
from reprior.errors import InputError, RefusedError, SupportError
from reprior.methods import Method, RatioSettings, RejuvenateSettings, SIRSettings
from reprior.methods.learned import NRE
from reprior.methods.learned.model import RatioModel
from reprior.methods.learned.training import Learned
from reprior.methods.rejuvenate import Rejuvenate
from reprior.methods.transport import Transport, Transported
from reprior.networks.fit import FitResult, Training
from reprior.networks.ratio import RatioNetworkSettings
from reprior.posterior import Scales
from reprior.standardizer import Standardizer
from reprior.weights import relative_ess

stats: Any = scipy_stats  # its annotations take numbers only

C = 0.3
POSTERIOR, PRIOR = gaussian_posterior(dim=2, c=C, rho=0.4)
TARGET = MultivariateNormal(torch.tensor([0.6, -0.2]), torch.tensor([[0.5, 0.2], [0.2, 0.4]]))
FAR = MultivariateNormal(torch.tensor([2.2, 2.2]), 0.05 * torch.eye(2))
X = torch.tensor([0.4, 0.2])
APART = torch.tensor([-1.2, 1.0])  # further from q: half the guidance leaves a visible error
SHORT = RatioSettings(
    observations=64,
    draws=32,
    network=RatioNetworkSettings(width=16, layers=2),
    training=Training(steps=20, batch=256, evaluate_every=20, ema=0.5),
)


def log_evidence(prior: MultivariateNormal, x: Tensor = X) -> float:
    return float(MultivariateNormal(prior.loc, prior.covariance_matrix + C * torch.eye(2)).log_prob(x))


class Half(Method):
    """Deliberately wrong: guides half the way, to p r^(1/2)."""

    name = "half"

    def guide(self, denoiser, generator):
        return Transported(denoiser, self.change.quadratic.scaled(0.5))


class Langevin(Transport):
    """Transport that asks for Langevin corrections."""

    name = "langevin"
    corrections = 3


class Fickle(Method):
    """Averages over fresh draws in every step, so its draws have no density."""

    name = "fickle"
    has_density = False


@pytest.fixture(scope="module")
def adapted():
    return reprior.adapt(POSTERIOR, TARGET, "transport")


@pytest.fixture(scope="module")
def wrong(adapted):
    return replace(adapted, method=Half(adapted.method.problem))


# --- sampling --------------------------------------------------------------------------------------------------------


def test_shapes_seeds_and_the_global_state(adapted):
    theta = adapted.sample((3, 5), X, seed=1)
    assert theta.shape == (3, 5, 2)
    assert theta.dtype == torch.float32
    assert torch.equal(theta.reshape(15, 2), adapted.sample((15,), X.unsqueeze(0), seed=1))
    assert not torch.equal(theta, adapted.sample((3, 5), X, seed=2))
    state = torch.get_rng_state()
    adapted.sample((4,), X, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(0)
    first = adapted.sample((4,), X)
    torch.manual_seed(0)
    assert torch.equal(first, adapted.sample((4,), X))  # without a seed, torch's own state rules


@pytest.mark.parametrize("method", ["none", "transport", "rejuvenate", "plug_in", "sir"])
def test_batched_sampling(method):
    x = torch.tensor([[0.4, 0.2], [-1.0, 0.5], [1.0, 1.0]])
    settings = RejuvenateSettings(pool=4_000) if method == "rejuvenate" else None
    theta, info = reprior.adapt(POSTERIOR, TARGET, method, settings).sample_batched(
        (2, 1_000), x, seed=0, return_info=True
    )
    assert theta.shape == (2, 1_000, 3, 2)
    assert (info.n, info.observations, info.method) == (2_000, 3, method)
    assert info.failed == {}
    assert len(info.relative_ess) == len(info.k_hat) == 3
    for k in range(3):
        exact = exact_posterior(PRIOR if method == "none" else TARGET, x[k], C)
        gap = (theta[:, :, k].reshape(-1, 2).mean(0) - exact.mean) / exact.stddev
        # 2,000 draws: standard error 0.022; pools and the plug-in value's 200 draws for the width add some.
        assert float(gap.abs().max()) < 0.13, (k, gap)


def test_sampler_is_the_base_s_own_unless_told(adapted):
    other = Sampler(steps=5)
    quick = reprior.adapt(replace(POSTERIOR, sampler=other), TARGET, "transport")
    assert quick.sampler == other
    assert torch.equal(quick.sample((9,), X, seed=0), adapted.sample((9,), X, seed=0, sampler=other))
    assert not torch.equal(quick.sample((9,), X, seed=0), adapted.sample((9,), X, seed=0))


def test_langevin_corrections_of_a_method_reach_the_sampler(adapted, monkeypatch):
    used = []
    adapted = replace(adapted, method=Langevin(adapted.method.problem))
    original = Langevin.draw
    monkeypatch.setattr(
        Langevin, "draw", lambda self, d, n, s, g: used.append(s.corrections) or original(self, d, n, s, g)
    )
    adapted.sample((5,), X, seed=0)
    adapted.sample((5,), X, seed=0, sampler=Sampler(corrections=1))
    assert used == [3, 1]


def test_draws_outside_the_bounds_of_q_are_drawn_again():
    box = Uniform(torch.tensor([0.0, -1.0]), torch.tensor([1.0, 1.0]))
    theta, info = reprior.adapt(POSTERIOR, box, "none").sample((500,), X, seed=0, return_info=True)
    assert float(theta[:, 0].min()) >= 0
    assert float(theta[:, 0].max()) <= 1
    exact = exact_posterior(PRIOR, X, C)
    z = (torch.tensor([0.0, 1.0]) - exact.mean[0]) / exact.stddev[0]
    inside = float(torch.special.ndtr(z[1]) - torch.special.ndtr(z[0]))
    assert info.rejected == pytest.approx(1 - inside, abs=0.07)


def test_observation_that_the_target_excludes():
    box = reprior.adapt(POSTERIOR, Uniform(torch.full((2,), 1.9), torch.full((2,), 2.0)), "none")
    with pytest.raises(InputError, match="% of the draws fall outside the support of the target prior"):
        box.sample((5,), torch.full((2,), -3.0), seed=0)


def test_unusable_calls(adapted):
    with pytest.raises(InputError, match="at least one sample; got"):
        adapted.sample((0,), X)
    with pytest.raises(InputError, match=r"x needs shape \(2,\) or \(K, 2\); got \(3,\)"):
        adapted.sample((5,), torch.zeros(3))
    with pytest.raises(InputError, match=r"one observation is needed here; got 2\. Use sample_batched"):
        adapted.sample((5,), torch.zeros(2, 2))
    with pytest.raises(InputError, match="infinite entries"):
        adapted.sample((5,), torch.tensor([0.0, torch.inf]))
    with pytest.raises(InputError, match="nothing to predict"):
        adapted.predict((5,), X)
    with pytest.raises(InputError, match="correct='maybe' is unknown; allowed: no, resample, weights"):
        adapted.sample((5,), X, correct="maybe")
    with pytest.raises(InputError, match=r"a reprior Posterior .*got str"):
        reprior.adapt("posterior", TARGET)  # pyright: ignore[reportArgumentType]


# --- info and warnings -----------------------------------------------------------------------------------------------


def test_equal_priors_change_nothing_and_say_so():
    same = reprior.adapt(POSTERIOR, PRIOR)
    assert same.method.name == "none"
    assert same.why == "the target prior equals the prior, so nothing changes"
    theta, info = same.sample((50,), X, seed=3, return_info=True)
    assert torch.equal(theta, POSTERIOR.sample((50,), X, seed=3))
    assert info.relative_ess[0] == pytest.approx(1.0)
    assert info.warnings == ()
    assert same.evidence_ratio(X)[0] == pytest.approx(1.0, abs=1e-5)
    assert reprior.adapt(POSTERIOR, PRIOR, "nre").method.name == "none"  # nothing is trained either


def test_collapsed_weights_warn(adapted):
    _, fine = adapted.sample((100,), X, seed=0, return_info=True)
    assert fine.warnings == ()
    assert fine.relative_ess[0] > 0.3
    far = reprior.adapt(POSTERIOR, FAR, "transport")
    _, info = far.sample((100,), X, seed=0, return_info=True)
    assert info.relative_ess[0] < 0.01
    assert any("relative ESS of the prior-ratio weights is" in w and "few base samples" in w for w in info.warnings)
    assert "warning       the relative ESS" in str(info)


def test_heavy_tailed_weights_warn():
    # The posterior is N(0, 0.91) and r = exp(0.42 theta^2) at its widest: P(r > t) falls like t^(-1/0.76).
    wide = MultivariateNormal(torch.zeros(1), torch.tensor([[6.0]]))
    loose, _ = gaussian_posterior(dim=1, c=10.0)
    _, info = reprior.adapt(loose, wide, "sir").sample((100,), torch.zeros(1), seed=0, return_info=True)
    assert info.k_hat[0] == pytest.approx(0.76, abs=0.06)
    assert any(f"Pareto k-hat of the prior-ratio weights is {info.k_hat[0]:.2f}" in w for w in info.warnings)


def test_mass_outside_is_a_warning_once_accepted():
    bounded, _ = gaussian_posterior(dim=2, c=C)
    box = replace(bounded, prior=reprior.priors.as_prior(Uniform(torch.full((2,), -1.0), torch.full((2,), 1.0))))
    wide = Uniform(torch.tensor([-1.0, -1.0]), torch.tensor([3.0, 1.0]))
    with pytest.raises(SupportError, match="outside the support of the prior"):
        reprior.adapt(box, wide, "none")
    accepted = reprior.adapt(box, wide, "none", accept_outside=True)
    assert accepted.warnings[0].endswith(
        "% of the target prior's mass lies outside the prior's support and is left out"
    )
    _, info = accepted.sample((20,), torch.zeros(2), seed=0, return_info=True)
    assert accepted.warnings[0] in info.warnings


# --- info judges when it is asked ------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    """The number of evaluations of the exact base."""
    made, bound = [], type(POSTERIOR.condition(X[None]))
    original = bound.mean_full
    monkeypatch.setattr(bound, "mean_full", lambda self, z, cov: made.append(len(z)) or original(self, z, cov))
    return made


@pytest.mark.parametrize("method", ["transport", "plug_in", "none"])
def test_no_base_draws_are_made_where_no_figure_is_asked_for(method, calls):
    adapted = reprior.adapt(POSTERIOR, TARGET, method)
    denoiser = POSTERIOR.condition(X[None])
    calls.clear()
    adapted.method.draw(denoiser, 70, adapted.sampler, torch.Generator().manual_seed(3))
    alone = list(calls)  # what the method itself asks for
    calls.clear()
    theta, info = adapted.sample((70,), X, seed=3, return_info=True)
    assert calls == alone
    assert torch.equal(theta, adapted.sample((70,), X, seed=3))
    calls.clear()
    _ = (info.told, info.failed, info.figures, info.rejected, info.seconds, repr(info))
    assert calls == []
    ess = info.relative_ess
    assert sum(calls) >= 2_000  # now there are weights of base draws
    asked = len(calls)
    assert info.relative_ess == ess
    assert (len(info.k_hat), info.warnings) == (1, ())
    assert str(info)
    assert len(calls) == asked  # found once


@pytest.mark.parametrize("method", ["sir", "rejuvenate"])
def test_weights_that_a_method_made_are_not_made_again(method, calls):
    settings = SIRSettings(pool=500) if method == "sir" else RejuvenateSettings(pool=500)
    _, info = reprior.adapt(POSTERIOR, TARGET, method, settings).sample((70,), X, seed=3, return_info=True)
    calls.clear()
    assert len(info.relative_ess) == 1
    assert info.log_w is not None
    assert info.log_w.shape == (500, 1)
    assert calls == []


def test_figures_asked_for_later_are_those_of_the_observation():
    x = torch.stack([X, APART])
    _, info = reprior.adapt(POSTERIOR, TARGET, "transport").sample_batched((20,), x, seed=0, return_info=True)
    for k in range(2):
        law = exact_posterior(PRIOR, x[k], C)
        theta = law.loc + torch.randn(40_000, 2, generator=torch.Generator().manual_seed(1)) @ law.scale_tril.T
        want = relative_ess(TARGET.log_prob(theta) - PRIOR.log_prob(theta))
        # 2,000 weights: the relative error of an ESS of .4 is some 3 %; 20 steps widen the posterior by 2 %.
        assert info.relative_ess[k] == pytest.approx(want, rel=0.2)


# --- seeds and progress ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["transport", "rejuvenate", "plug_in", "sir", "none"])
def test_the_same_seed_gives_the_same_draws(method):
    settings = {"rejuvenate": RejuvenateSettings(pool=300), "sir": SIRSettings(pool=300)}.get(method)
    adapted, x = reprior.adapt(POSTERIOR, TARGET, method, settings), torch.stack([X, APART])
    again = reprior.adapt(POSTERIOR, TARGET, method, settings)
    state = torch.get_rng_state()
    one = adapted.sample_batched((9,), x, seed=5)
    assert torch.equal(one, adapted.sample_batched((9,), x, seed=5))
    assert torch.equal(one, again.sample_batched((9,), x, seed=5))  # whatever was asked before
    assert not torch.equal(one, adapted.sample_batched((9,), x, seed=6))
    assert torch.equal(adapted.sample((9,), X, seed=5), adapted.sample_batched((9,), X[None], seed=5)[:, 0])
    assert torch.equal(state, torch.get_rng_state())
    for bad in (-1, 1.5, True):
        with pytest.raises(InputError, match="seed must be an integer of 0 or more"):
            adapted.sample((9,), X, seed=bad)  # pyright: ignore


@pytest.mark.parametrize("which", ["base", "transport", "rejuvenate", "resample"])
def test_a_progress_bar_is_all_that_is_shown(which, capfd):
    if which == "base":
        asked, label, more = POSTERIOR, "sample", {}
    else:
        name = "transport" if which == "resample" else which
        asked, label = reprior.adapt(POSTERIOR, TARGET, name), f"sample by {name}"
        more = {"correct": "resample"} if which == "resample" else {}
    capfd.readouterr()
    quiet = asked.sample((30,), X, seed=2, **more)
    assert capfd.readouterr() == ("", "")
    shown = asked.sample((30,), X, seed=2, progress=True, **more)
    out, err = capfd.readouterr()
    assert torch.equal(quiet, shown)  # a bar changes no draw
    assert out == ""
    lines = [line.strip() for line in re.split(r"[\r\n]", err) if line.strip()]
    assert lines
    assert all(re.fullmatch(rf"{label}: \d+ evaluations \[.*\]", line) for line in lines), lines
    assert torch.equal(asked.sample((30,), X, seed=2, show_progress_bars=True, **more), shown)
    assert label in capfd.readouterr().err


# --- evidence ratio and log-density ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", [TARGET, MultivariateNormal(torch.zeros(2), 2 * torch.eye(2))], ids=["narrow", "wide"]
)
def test_evidence_ratio_is_a_bayes_factor(target):
    adapted = reprior.adapt(POSTERIOR, target, "none")
    z, error = adapted.evidence_ratio(X, draws=20_000, seed=1)
    exact = math.exp(log_evidence(target) - log_evidence(PRIOR))
    assert 0 < error < 0.02 * exact
    # Four standard errors, and 1 % for the sampler's own width.
    assert z == pytest.approx(exact, abs=4 * error + 0.01 * exact)
    assert adapted.evidence_ratio(X, draws=20_000, seed=1) == (z, error)


def test_error_bar_of_the_evidence_ratio_is_its_spread_over_seeds(adapted):
    found = [adapted.evidence_ratio(X, draws=400, seed=s) for s in range(60)]
    spread = float(torch.tensor([z for z, _ in found]).std())
    assert spread == pytest.approx(sum(e for _, e in found) / 60, rel=4 / math.sqrt(2 * 60))


def test_log_prob_is_the_exact_log_density(adapted):
    exact = exact_posterior(TARGET, X, C)
    theta = exact.mean + exact.stddev * torch.tensor([[0.0, 0.0], [1.0, -1.0], [2.0, 0.5], [-1.5, -1.5]])
    value = adapted.log_prob(theta.reshape(2, 2, 2), X)
    assert value.shape == (2, 2)
    # log Z carries the Monte Carlo error of 10,000 draws, some 1 %; the flow's own error is as large.
    assert torch.allclose(value.flatten(), exact.log_prob(theta), atol=0.05)
    gap = value.flatten() - exact.log_prob(theta)
    assert float(gap.max() - gap.min()) < 0.02  # between points Z drops out


def test_log_prob_knows_the_support_and_integrates_to_one():
    box = Uniform(torch.tensor([0.0, -1.0]), torch.tensor([1.0, 1.0]))
    adapted = reprior.adapt(POSTERIOR, box, "none")
    a, b = torch.linspace(0.0125, 0.9875, 20), torch.linspace(-0.95, 0.95, 20)
    grid = torch.stack(torch.meshgrid(a, b, indexing="ij"), -1)
    total = float(adapted.log_prob(grid, X).exp().sum()) * 0.05 * 0.1
    assert total == pytest.approx(1.0, abs=0.04)
    assert float(adapted.log_prob(torch.tensor([-0.1, 0.0]), X)) == -torch.inf
    with pytest.raises(InputError, match="theta needs 2 entries in its last axis"):
        adapted.log_prob(torch.zeros(4, 3), X)


def test_log_r_is_the_ratio_of_the_priors(adapted):
    theta = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(adapted.log_r(theta), TARGET.log_prob(theta) - PRIOR.log_prob(theta), atol=1e-4)


# --- importance correction -------------------------------------------------------------------------------------------


def test_weights_of_a_wrong_guidance_and_their_ess(wrong):
    n = 1_500
    theta, info = wrong.sample((n,), APART, seed=0, correct="weights", return_info=True)
    log_w = info.weights
    assert log_w is not None
    assert log_w.shape == (n,)
    # g = p r^(1/2) up to a constant, so the weights are r^(1/2).
    half = wrong.change.log_r(theta) / 2
    gap = log_w - half
    ess = info.figures["relative ESS of the correction"][0]
    assert float(gap.std()) < 0.02
    assert ess == pytest.approx(relative_ess(half), rel=0.02)
    weights = torch.softmax(log_w, 0).unsqueeze(-1)
    exact = exact_posterior(TARGET, APART, C)
    before = float(((theta.mean(0) - exact.mean) / exact.stddev).abs().max())
    after = float((((weights * theta).sum(0) - exact.mean) / exact.stddev).abs().max())
    assert before > 0.3
    assert after < 4 / math.sqrt(n * ess)


def test_resampling_moves_a_wrong_guidance_to_the_target(wrong):
    n = 2_000
    plain = wrong.sample((n,), APART, seed=0)
    theta, info = wrong.sample((n,), APART, seed=0, correct="resample", return_info=True)
    exact = exact_posterior(TARGET, APART, C)
    assert float(((plain.mean(0) - exact.mean) / exact.stddev).abs().max()) > 0.3
    ess = info.figures["relative ESS of the correction"][0]
    assert 0.5 < ess < 0.98
    assert float(((theta.mean(0) - exact.mean) / exact.stddev).abs().max()) < 4 / math.sqrt(n * ess)
    assert torch.allclose(theta.std(0), exact.stddev, rtol=0.1)
    assert info.figures["duplicates"][0] == n - len(theta.unique(dim=0)) > 0
    assert {tuple(row) for row in theta.tolist()} <= {tuple(row) for row in plain.tolist()}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("transport", None),
        ("plug_in", None),
        ("nre", SHORT),
        ("kliep", SHORT),
    ],
)
def test_correction_works_for_every_guidance_with_a_density(method, settings):
    adapted = reprior.adapt(POSTERIOR, TARGET, method, settings)
    theta, info = adapted.sample((200,), X, seed=0, sampler=Sampler(), correct="weights", return_info=True)
    # The weights carry p r / g: their mean is Z, whatever g covers, within the error of 200 weights.
    ess = info.figures["relative ESS of the correction"][0]
    assert 0 < ess <= 1
    log_z = log_evidence(TARGET) - log_evidence(PRIOR)
    assert info.weights is not None
    found = float(torch.logsumexp(info.weights, 0)) - math.log(200)
    if method in ("transport", "plug_in"):
        assert ess > 0.98
        assert found == pytest.approx(log_z, abs=0.05)
    else:
        assert found == pytest.approx(log_z, abs=0.05 + 4 * math.sqrt((1 / ess - 1) / 200))
    assert bool(torch.isfinite(theta).all())


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("sir", None, "method 'sir' has no density of its own"),
        ("rejuvenate", RejuvenateSettings(pool=200), "method 'rejuvenate' has no density of its own"),
    ],
)
def test_methods_without_a_density_cannot_be_corrected(method, settings, message):
    adapted = reprior.adapt(POSTERIOR, TARGET, method, settings)
    with pytest.raises(InputError, match=message):
        adapted.sample((10,), X, seed=0, correct="resample")


def test_a_method_that_says_it_has_no_density_cannot_be_corrected(adapted):
    fickle = replace(adapted, method=Fickle(adapted.method.problem))
    with pytest.raises(InputError, match="method 'fickle' averages over fresh draws"):
        fickle.sample((10,), X, seed=0, correct="resample")


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (Sampler(eta=0.5), "drawn with eta=0.5"),
        (Sampler(kind="euler_maruyama"), "drawn with noise in every step"),
        (Sampler(corrections=2), "drawn with 2 Langevin corrections after each step"),
    ],
)
def test_samplers_that_add_noise_cannot_be_corrected(adapted, sampler, message):
    with pytest.raises(InputError, match=f"{message}, so its samples do not follow the density of the guided ODE"):
        adapted.sample((10,), X, seed=0, sampler=sampler, correct="resample")


def test_langevin_corrections_of_a_method_cannot_be_corrected(adapted):
    with pytest.raises(InputError, match="3 Langevin corrections after each step"):
        replace(adapted, method=Langevin(adapted.method.problem)).sample((10,), X, seed=0, correct="resample")


def test_weights_are_by_the_density_of_the_denoiser_that_drew():
    # The plug-in value learns the posterior's width from 200 draws of the call's own seed.
    plug_in = reprior.adapt(POSTERIOR, TARGET, "plug_in")
    theta, info = plug_in.sample((50,), X, seed=5, correct="weights", return_info=True)
    assert torch.equal(theta, plug_in.sample((50,), X, seed=5))
    denoiser = POSTERIOR.condition(X.unsqueeze(0))

    def by(seed: int) -> Tensor:
        guided = plug_in.method.guide(denoiser, torch.Generator().manual_seed(seed))
        log_p, log_g = (POSTERIOR.density(one, theta, 24) for one in (denoiser, guided))
        return log_p + plug_in.log_r(theta) - log_g

    assert info.weights is not None
    assert torch.allclose(info.weights, by(5), atol=1e-5)
    assert not torch.allclose(by(0), by(5), atol=1e-3)


def test_what_is_drawn_again_follows_the_same_law_as_the_rest():
    frozen = freeze(reprior.adapt(POSTERIOR, TARGET, "plug_in"), Sampler())
    denoiser, generator = POSTERIOR.condition(X.unsqueeze(0)), torch.Generator().manual_seed(0)
    assert frozen.method.guide(denoiser, generator) is frozen.method.guide(denoiser, generator)


# --- a prior without gradient ----------------------------------------------------------------------------------------


def test_scipy_target_that_is_not_gaussian_needs_no_gradient():
    frozen = stats.multivariate_t([0.3, 0.3], [[0.5, 0.0], [0.0, 0.5]], df=4)
    adapted = reprior.adapt(POSTERIOR, frozen)
    assert adapted.method.name == "rejuvenate"
    theta, info = adapted.sample((2_000,), X, seed=0, return_info=True)
    assert info.told[0].endswith("by moves")
    base = exact_posterior(PRIOR, X, C)
    pool = base.sample(torch.Size((40_000,)))
    weights = torch.softmax(adapted.log_r(pool), 0).unsqueeze(-1)
    assert torch.allclose(theta.mean(0), (weights * pool).sum(0), atol=5 * float(base.stddev.max()) / math.sqrt(2_000))
    laplace = Independent(Laplace(torch.zeros(2), torch.ones(2)), 1)
    assert reprior.adapt(POSTERIOR, laplace).method.name == "rejuvenate"


# --- devices ---------------------------------------------------------------------------------------------------------


def test_moving_takes_the_learned_network_along_and_leaves_the_original():
    problem = problem_of(POSTERIOR, TARGET)
    model = RatioModel(2, 2, RatioNetworkSettings(width=4, layers=1), with_plug_in=False).requires_grad_(False)
    learned = NRE(problem, RatioSettings(), Learned(model, None, FitResult(0, 0, 0.0, [], 0.0, ""), {}))
    method = Rejuvenate(problem, RejuvenateSettings(kernel="learned"), learned)
    moved = AdaptedPosterior(POSTERIOR, problem.change, method).to("meta")  # a device that is always there
    assert moved.posterior.device.type == "meta"
    inner = moved.method.learned  # pyright: ignore[reportAttributeAccessIssue]
    assert inner.problem.posterior is moved.method.problem.posterior is moved.posterior
    assert {p.device.type for p in inner.model.parameters()} == {"meta"}
    assert POSTERIOR.device.type == "cpu"
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_correction_leaves_an_exact_method_as_it_is_where_q_is_wider():
    posterior, _ = gaussian_posterior(dim=1, c=0.05)
    wide = MultivariateNormal(torch.zeros(1), 4 * torch.eye(1))
    x = torch.tensor([3.5])
    _, info = reprior.adapt(posterior, wide, "transport").sample(
        (2_000,), x, seed=0, correct="weights", return_info=True
    )
    assert info.figures["relative ESS of the correction"][0] > 0.999


def test_an_evidence_ratio_that_no_draw_supports_is_an_error():
    box = reprior.adapt(POSTERIOR, Uniform(torch.full((2,), 1.9), torch.full((2,), 2.0)), "none")
    away = torch.full((2,), -3.0)
    with pytest.raises(InputError, match="none of 500 draws"):
        box.evidence_ratio(away, draws=500)
    with pytest.raises(InputError, match="none of 500 draws"):
        box.log_prob(torch.full((1, 2), 1.95), away, draws=500)
    with pytest.warns(UserWarning, match="effective draws of 500"):
        box.evidence_ratio(torch.full((2,), 1.9), draws=500)


def test_few_draws_inside_the_bounds_are_enough():
    posterior, _ = gaussian_posterior(dim=1, c=1.0)  # p(theta | x) = N(x/2, 1/2)
    sd = math.sqrt(0.5)
    cut = Uniform(torch.tensor([2 * sd]), torch.tensor([20.0]))  # holds 2.3 % of N(0, 1/2)
    adapted = replace(reprior.adapt(posterior, cut, "none", accept_outside=True))
    theta, info = adapted.sample((1_000,), torch.zeros(1), seed=0, return_info=True)
    want = stats.truncnorm(2, math.inf, scale=sd)
    assert info.rejected == pytest.approx(1 - stats.norm.sf(2), abs=0.005)
    assert float(theta.mean()) == pytest.approx(want.mean(), abs=4 * want.std() / math.sqrt(1_000))
    assert float(theta.min()) >= 2 * sd


def test_a_target_with_trainable_parameters():
    mean = torch.nn.Parameter(torch.tensor([0.6, -0.2]))
    q = MultivariateNormal(mean, TARGET.covariance_matrix)
    for method in ("sir", "rejuvenate", "transport"):
        samples, info = reprior.adapt(POSTERIOR, q, method).sample((200,), X, seed=0, return_info=True)
        assert not samples.requires_grad
        assert math.isfinite(info.relative_ess[0])


def test_numpy_and_double_precision_are_read(adapted):
    theta = torch.tensor([[0.5, 0.1], [0.2, 0.3]])
    want = adapted.log_prob(theta, X, draws=500)
    assert torch.equal(adapted.log_prob(theta.double(), X.double(), draws=500), want)
    assert torch.equal(adapted.log_prob(theta.numpy(), X.numpy(), draws=500), want)


def test_weights_are_not_thrown_away(adapted):
    with pytest.raises(InputError, match="return_info=True"):
        adapted.sample((10,), X, correct="weights")


BOX = Uniform(torch.full((2,), 0.0), torch.full((2,), 1.0))


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("sir", "no base sample has mass under the target prior"),
        ("rejuvenate", "no base sample has mass under the target prior"),
        ("none", "100.0 % of the draws fall outside the support of the target prior"),
        ("auto", "no base sample has mass under the target prior"),
    ],
)
def test_an_observation_that_cannot_be_drawn_costs_no_other(method, reason):
    adapted = reprior.adapt(POSTERIOR, BOX, method)
    x = torch.stack([X, torch.full((2,), -9.0), torch.full((2,), 0.5)])
    theta, info = adapted.sample_batched((40,), x, seed=0, return_info=True)
    assert list(info.failed) == [1]
    assert reason in info.failed[1]
    assert torch.isfinite(theta).all(-1).all(0).tolist() == [True, False, True]
    assert bool(theta[:, 1].isnan().all())
    assert bool(((theta[:, [0, 2]] >= 0) & (theta[:, [0, 2]] <= 1)).all())
    assert any(w.startswith("observation 1 (counted from 0) was not drawn") and reason in w for w in info.warnings)
    assert torch.equal(adapted.sample_batched((40,), x, seed=0).nan_to_num(-99.0), theta.nan_to_num(-99.0))
    with pytest.raises(RefusedError, match=re.escape(reason)):  # alone, it is an error
        adapted.sample((40,), x[1], seed=0)


def test_a_base_observation_that_cannot_be_drawn_costs_no_other():
    base, _ = gaussian_posterior(dim=1, c=0.05)
    flat = replace(base, prior=Independent(Uniform(torch.full((1,), -1.0), torch.ones(1)), 1))
    theta, info = flat.sample_batched((30,), torch.tensor([[0.0], [60.0]]), seed=0, return_info=True)
    assert list(info.failed) == [1]
    assert "outside the prior's support" in info.failed[1]
    assert theta.isnan().any(-1).any(0).tolist() == [False, True]


def test_a_number_of_samples_is_a_shape(adapted):
    assert torch.equal(adapted.sample(7, X, seed=0), adapted.sample((7,), X, seed=0))
    assert torch.equal(adapted.posterior.sample(7, X, seed=0), adapted.posterior.sample((7,), X, seed=0))
    assert adapted.sample_batched(3, X[None], seed=0).shape == (3, 1, 2)


def test_a_bayes_factor_of_a_function_is_warned_of():
    given = reprior.adapt(POSTERIOR, lambda theta: TARGET.log_prob(theta) + 100, "none")
    with pytest.warns(UserWarning, match="up to a constant"):
        given.evidence_ratio(X, draws=1_000)


@pytest.mark.parametrize("offset", [-5_000.0, 5_000.0])
def test_an_evidence_ratio_that_is_no_number_is_an_error(offset):
    given = reprior.adapt(POSTERIOR, lambda theta: TARGET.log_prob(theta) + offset, "none")
    with (
        pytest.warns(UserWarning, match="up to a constant"),
        pytest.raises(InputError, match=rf"log q\(x\)/p\(x\) is {'-' * (offset < 0)}[45]\d\d\d.*normalise log q"),
    ):
        given.evidence_ratio(X, draws=1_000)


def test_the_evidence_ratio_of_what_is_left_of_a_target():
    # p = U(-1, 1) and q = N(0, 1): 32 % of q is left out. At x = theta + N(0, 0.3) the posterior is a cut Gaussian.
    base, _ = gaussian_posterior(dim=1, c=0.3)
    flat = replace(base, prior=Independent(Uniform(torch.full((1,), -1.0), torch.ones(1)), 1))
    adapted = reprior.adapt(flat, MultivariateNormal(torch.zeros(1), torch.eye(1)), "sir", accept_outside=True)
    left = 1 - 2 * float(torch.special.ndtr(torch.tensor(-1.0)))
    assert adapted.change.outside == pytest.approx(1 - left, abs=0.02)
    theta = flat.sample((10_000,), torch.zeros(1), seed=0)
    ratio = (torch.exp(-(theta**2) / 2) / math.sqrt(2 * math.pi) / left / 0.5).mean()
    assert adapted.evidence_ratio(torch.zeros(1))[0] == pytest.approx(float(ratio), rel=0.03)


def test_a_narrow_target_far_from_the_data_is_named():
    far = MultivariateNormal(torch.full((2,), 7.0), 1e-4 * torch.eye(2))
    adapted = reprior.adapt(gaussian_posterior(dim=2, c=0.09)[0], far, "rejuvenate")
    with pytest.raises(InputError, match="no base sample has mass under the target prior; the two may not agree"):
        adapted.sample((10,), torch.tensor([0.8, -0.2]), seed=0)


def test_a_cut_is_called_a_cut():
    unit = Standardizer(torch.zeros(1), torch.ones(1))
    flat = Independent(Uniform(torch.full((1,), -4.0), torch.full((1,), 4.0)), 1)
    posterior, _ = gaussian_posterior(dim=1, c=0.1)
    box = replace(posterior, prior=flat, scales=Scales(unit, unit), simulations=None)
    adapted = reprior.adapt(box, Independent(Uniform(torch.full((1,), -2.0), torch.full((1,), 3.0)), 1))
    assert adapted.why.startswith("a cut of the prior")


# --- where others ask for it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["adapted", "base"])
def test_the_diagnostics_of_sbi_take_it(which):
    posterior = reprior.adapt(POSTERIOR, TARGET) if which == "adapted" else POSTERIOR
    prior = TARGET if which == "adapted" else PRIOR
    generator = torch.Generator().manual_seed(0)
    theta = prior.mean + torch.randn(100, 2, generator=generator) @ prior.scale_tril.T
    x = theta + math.sqrt(C) * torch.randn(100, 2, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ranks, _ = run_sbc(theta, x, posterior, num_posterior_samples=100, show_progress_bar=False)  # pyright: ignore
    # Ranks are uniform on 0 to 100 where the posterior is right: 100 of them have mean 50 and standard error 2.9.
    assert torch.allclose(ranks.mean(0), torch.tensor(50.0), atol=4 * 2.9)


def test_it_goes_through_a_process_pool():
    for target in (TARGET, Independent(Laplace(torch.zeros(2), torch.ones(2)), 1)):
        adapted = reprior.adapt(POSTERIOR, target, seed=0)
        again = pickle.loads(pickle.dumps(adapted))
        assert torch.equal(adapted.sample((5,), X, seed=1), again.sample((5,), X, seed=1))


def test_an_adapted_posterior_is_no_base():
    adapted = reprior.adapt(POSTERIOR, TARGET)
    with pytest.raises(InputError, match=r"got an AdaptedPosterior: adapt its base, adapted\.posterior"):
        reprior.adapt(adapted, FAR)
    with pytest.raises(InputError, match=r"got AdaptedPosterior: give its base, adapted\.posterior"):
        reprior.update(adapted, X.expand(2, 2))  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"got 2\. Use sample_batched for several.*or reprior\.update"):
        adapted.sample((3,), X.expand(2, 2))


def test_what_is_printed_can_be_read():
    _, info = reprior.adapt(POSTERIOR, TARGET).sample((50,), X, seed=0, return_info=True)
    assert f"relative ESS  {info.relative_ess[0]:.4g}" in str(info)
    assert f"k-hat         {info.k_hat[0]:.4g}" in str(info)
    assert "what was done the base was evaluated at another point" in str(info)
    _, plain = POSTERIOR.sample((50,), X, seed=0, return_info=True)
    assert (plain.relative_ess, plain.k_hat, plain.log_w) == ((), (), None)
    assert "ESS" not in str(plain)


def test_a_density_that_is_no_number_is_warned_of():
    with pytest.warns(UserWarning, match="NaN at [45][0-9.]* % of draws of the prior"):
        adapted = reprior.adapt(POSTERIOR, lambda theta: theta[:, 0].log())
    assert bool((adapted.sample((200,), X, seed=0)[:, 0] > 0).all())


def test_an_observation_far_from_the_simulations_is_told_of():
    adapted = reprior.adapt(POSTERIOR, TARGET, "transport")
    near, far = torch.zeros(POSTERIOR.x_dim), torch.full((POSTERIOR.x_dim,), 50.0)
    for asked in (POSTERIOR, adapted):
        told = [asked.sample((50,), x, seed=0, return_info=True)[1].warnings for x in (near, far)]
        assert not any("extrapolates" in text for text in told[0])
        assert any("times as far from the stored simulations" in text for text in told[1])


def test_a_seed_that_is_none_is_refused():
    with pytest.raises(InputError, match="seed must be an integer of 0 or more; got None"):
        reprior.adapt(POSTERIOR, TARGET, seed=None)  # pyright: ignore[reportArgumentType]
