"""Sequential updates against the closed form of an exact Gaussian base: theta ~ N(0, P), x_k = theta + N(0, c I)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from exact import gaussian_posterior
from torch import Tensor

import reprior
from reprior.adapted import AdaptedPosterior
from reprior.change import PriorChange
from reprior.errors import InputError
from reprior.methods import Problem, RatioSettings, RejuvenateSettings, SIRSettings, find
from reprior.networks.fit import Training
from reprior.networks.ratio import RatioNetworkSettings
from reprior.sequential.result import Update
from reprior.sequential.settings import AccumulateSettings, RatioUpdateSettings, settings_of

C = 0.3
POSTERIOR, PRIOR = gaussian_posterior(dim=2, c=C, rho=0.4, noise="diagonal")
THETA = torch.tensor([0.8, -0.5])
X = THETA + C**0.5 * torch.randn(5, 2, generator=torch.Generator().manual_seed(4))
QUICK = AccumulateSettings(points=200, checks=40, moves=30, rejuvenate=RejuvenateSettings(pool=1_000))
SHORT = Training(steps=300, batch=512, learning_rate=3e-3, ema=0.95, evaluate_every=100, patience=5)
N = 2_000


def closed_form(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of p(theta | x_1..n), for x with shape (n, 2)."""
    cov = torch.linalg.inv(torch.linalg.inv(PRIOR.covariance_matrix) + len(x) * torch.eye(2) / C)
    return cov @ x.sum(0) / C, cov


def carried_form(x: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of the first parameter, the second one being new in every observation."""
    prior = PRIOR.covariance_matrix
    one = torch.linalg.inv(torch.linalg.inv(prior) + torch.eye(2) / C)
    means = x @ one / C
    weight = 1 / one[0, 0] - 1 / prior[0, 0]
    precision = 1 / prior[0, 0] + len(x) * weight
    return float((means[:, 0] / one[0, 0]).sum() / precision), float(precision**-0.5)


@pytest.fixture(scope="module")
def updates():
    return reprior.update(POSTERIOR, X, settings=QUICK, samples=N, progress=False)


def test_accumulate_is_the_closed_form_after_every_update(updates):
    assert [one.n for one in updates] == [1, 2, 3, 4, 5]
    for one in updates:
        mean, cov = closed_form(X[: one.n])
        sd = cov.diagonal().sqrt()
        # 2,000 draws: the mean is known to 0.022 sd and the sd to 1.6 %; four times that, and 2 % for the fitted density.
        assert float(((one.samples.mean(0) - mean) / sd).abs().max()) < 0.09 + 0.02
        assert float((one.samples.std(0) / sd - 1).abs().max()) < 0.065 + 0.02
        rho = float(torch.corrcoef(one.samples.T)[0, 1])
        assert abs(rho - float(cov[0, 1] / (sd[0] * sd[1]))) < 0.1
        assert one.verdict == "ok"
        assert one.samples.shape == (N, 2)
        assert torch.equal(one.x, X[one.n - 1])


def test_a_round_that_is_found_wanting_is_made_again_with_a_new_fit(monkeypatch):
    from reprior.sequential.accumulate import Accumulate
    from reprior.sequential.terms import Check, Terms

    def after_two(rounds: int) -> tuple[Tensor, dict[str, float]]:
        run = Accumulate(POSTERIOR, (), replace(QUICK, rounds=rounds))
        run.finish(X[0], POSTERIOR.sample((N,), X[0], seed=0), 0)
        run.adapt(X[1], 1)
        assert run._log_r is not None
        right = run._log_r.forward
        run._log_r.forward = lambda theta: right(theta) + 6 * theta[..., 0]  # wrong by up to twelve
        monkeypatch.setattr(Terms, "check", lambda *_: Check(9.0, 0.0))
        return run.finish(X[1], POSTERIOR.sample((N,), X[1], seed=2), 2)

    mean, cov = closed_form(X[:2])
    error = {}
    for rounds in (1, 2):
        samples, _ = after_two(rounds)
        monkeypatch.undo()
        error[rounds] = float(((samples.mean(0) - mean) / cov.diagonal().sqrt()).abs().max())
    assert error[1] > 1
    # 30 moves from a wrong start leave some of it.
    assert error[2] < 0.3


def test_a_wrong_sum_of_the_terms_before_is_seen():
    from reprior.sequential.accumulate import Accumulate

    agreement = {}
    for slope in (0.0, 1.5):
        run = Accumulate(POSTERIOR, (), QUICK)
        run.finish(X[0], POSTERIOR.sample((N,), X[0], seed=0), 0)
        run.adapt(X[1], 1)
        assert run._log_r is not None
        right = run._log_r.forward
        run._log_r.forward = lambda theta, right=right, slope=slope: right(theta) + slope * theta[..., 0]
        _, notes = run.finish(X[1], POSTERIOR.sample((N,), X[1], seed=2), 2)
        agreement[slope] = notes["agreement"]
    assert agreement[0.0] > 0.98
    # exp(1.5 theta_1) over an sd of .36: ESS/N exp(-.29) = .75, from 40 points.
    assert agreement[1.5] < 0.88


def test_the_evidence_ratio_of_an_update_is_not_known(updates):
    with pytest.raises(InputError, match="known up to a constant only"):
        updates[-1].adapted.evidence_ratio(X[-1])


def test_the_adapted_posterior_draws_the_same_posterior(updates):
    assert updates[0].adapted is POSTERIOR
    last = updates[-1].adapted
    assert isinstance(last, AdaptedPosterior)
    mean, cov = closed_form(X)
    samples = last.sample((N,), X[-1], seed=7)
    # A pool of 1,000 with ESS/N about .15: the mean of 150 effective draws is known to 0.08 sd; three times that.
    assert float(((samples.mean(0) - mean) / cov.diagonal().sqrt()).abs().max()) < 0.25
    # log r is the sum of the log-densities, up to a constant: where the posterior lies, against the closed form.
    theta = updates[-1].samples[:200]
    before = closed_form(X[:-1])
    exact = torch.distributions.MultivariateNormal(*before).log_prob(theta) - PRIOR.log_prob(theta)
    gap = last.log_r(theta) - exact
    assert float(gap.std()) < 0.1


def test_the_order_of_observations_does_not_matter(updates):
    backwards = reprior.update(POSTERIOR, X.flip(0), settings=QUICK, samples=N, seed=1, progress=False)
    a, b = updates[-1].samples, backwards[-1].samples
    sd = closed_form(X)[1].diagonal().sqrt()
    # Two means of 2,000 draws each: 0.032 sd apart by chance; four times that.
    assert float(((a.mean(0) - b.mean(0)) / sd).abs().max()) < 0.13
    assert float((a.std(0) / b.std(0) - 1).abs().max()) < 0.1


def test_nuisance_parameters_are_not_carried():
    updates = reprior.update(POSTERIOR, list(X[:4]), nuisance=["theta_2"], settings=QUICK, samples=N, progress=False)
    mean, sd = carried_form(X[:4])
    samples = updates[-1].samples
    assert abs(float(samples[:, 0].mean()) - mean) < 0.11 * sd
    assert abs(float(samples[:, 0].std()) / sd - 1) < 0.085
    # The nuisance parameter is that of the last observation alone: wider than if it had been carried.
    assert float(samples[:, 1].std()) > 1.3 * float(closed_form(X[:4])[1][1, 1].sqrt())
    log_r = updates[-1].adapted.log_r  # pyright: ignore[reportAttributeAccessIssue]
    theta = samples[:50].clone()
    theta[:, 1] += 1.0
    assert torch.allclose(log_r(theta), log_r(samples[:50]))


def test_a_ratio_learned_from_samples_follows_too():
    longer = replace(SHORT, steps=600)
    network = RatioNetworkSettings(width=64, layers=2)
    nre = RatioSettings(plug_in="on", observations=10, draws=1_000, network=network, training=longer)
    settings = RatioUpdateSettings(ratio=SHORT, settings=nre)
    x = X[[1, 0]]
    updates = reprior.update(POSTERIOR, x, method="ratio", settings=settings, samples=N, progress=False)
    (mean, cov), (alone, _) = closed_form(x), closed_form(x[1:])
    sd = cov.diagonal().sqrt()
    last = updates[-1].samples
    # Trainings this short are off by some tenths (0.18 and 3 % were measured); the last observation alone is off by 2.5.
    assert float(((last.mean(0) - mean) / sd).abs().max()) < 0.5
    assert float(((alone - mean) / sd).abs().max()) > 2
    assert float((last.std(0) / sd - 1).abs().max()) < 0.2
    assert [one.verdict for one in updates] == ["ok", "caution"]
    assert updates[-1].reasons == (
        "Carried prior learned from samples: no figure. Nothing checks the errors that add up.",
    )


def test_any_registered_method_can_change_the_prior_and_a_nuisance_parameter_is_unseen():
    settings = RatioUpdateSettings(ratio=SHORT, method="sir", settings=SIRSettings(pool=2_000))
    updates = reprior.update(
        POSTERIOR, X[:2], nuisance=[1], method="ratio", settings=settings, samples=300, progress=False
    )
    assert updates[-1].info.method == "sir"
    adapted = updates[-1].adapted
    assert isinstance(adapted, AdaptedPosterior)
    theta = updates[-1].samples[:50]
    moved = theta + torch.tensor([0.0, 2.0])
    assert torch.allclose(adapted.log_r(theta), adapted.log_r(moved))


def test_updates_are_a_sequence_that_prints(updates):
    assert len(updates) == 5
    assert len(updates[1:3]) == 2
    text = str(updates)
    assert "theta_1" in text
    assert text.count("ok") == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observations": []}, "at least one observation"),
        ({"observations": X[0]}, r"shape \(N, 2\)"),
        ({"observations": [X[0], X[0, :1]]}, r"shape \(2,\)"),
        ({"observations": torch.full((2, 2), torch.inf)}, "infinite"),
        ({"nuisance": ["theta_9"]}, "theta_9"),
        ({"nuisance": [2]}, "unknown"),
        ({"nuisance": "theta_1"}, "list of names"),
        ({"nuisance": [0, 1]}, "nothing is carried"),
        ({"method": "magic"}, "allowed: accumulate, ratio$"),
        ({"settings": "paper"}, "'paper' of 'accumulate'"),
        ({"settings": RatioUpdateSettings()}, "takes AccumulateSettings"),
        ({"samples": 10}, "at least 200"),
        ({"seed": -1}, "0 or more; got -1"),
    ],
)
def test_bad_input(change, message):
    arguments = {"observations": X, "progress": False, **change}
    with pytest.raises(InputError, match=message):
        reprior.update(POSTERIOR, **arguments)


def test_bad_settings():
    with pytest.raises(InputError, match="points >= 100"):
        AccumulateSettings(points=5)
    with pytest.raises(InputError, match=r"enough must lie in \(0, 1\]; got 2"):
        AccumulateSettings(enough=2)
    with pytest.raises(InputError, match=r"reprior.sequential.Coordinates; got 'transit'"):
        AccumulateSettings(coordinates="transit")  # pyright: ignore
    with pytest.raises(InputError, match="method 'magic' is unknown"):
        RatioUpdateSettings(method="magic")
    with pytest.raises(InputError, match="takes RatioSettings; got SIRSettings"):
        RatioUpdateSettings(settings=SIRSettings())


def test_the_paper_trains_at_the_stored_observations():
    paper = settings_of("ratio", "paper")
    assert not paper.local
    assert paper.method_settings.weights == "joint"
    assert RatioUpdateSettings(method="sir").method_settings == SIRSettings()
    assert RatioUpdateSettings().method_settings.observations == 10


def weights(ess: float, heavy: bool = False, n: int = 10_000) -> Tensor:
    """Log weights with that relative ESS, with shape (n, 1): some equal ones, or a heavy tail besides."""
    log_w = torch.full((n, 1), -torch.inf)
    count = max(1, round(ess * n))
    log_w[:count] = 0.0
    if heavy:  # quantiles of a Pareto distribution of shape 1
        log_w[:, 0] = -torch.log(1 - (torch.arange(n) + 0.5) / n)
    return log_w


@pytest.mark.parametrize(
    ("log_w", "figures", "learned", "verdict", "worst"),
    [
        (None, {}, False, "ok", ""),
        (None, {"agreement": 0.2}, False, "do not trust", "fit"),
        (weights(0.1), {}, False, "ok", ""),
        (weights(0.001), {}, False, "caution", "overlap"),
        (weights(0.0001), {}, False, "do not trust", "overlap"),
        (weights(0.1, heavy=True), {}, False, "caution", "k_hat"),
        (weights(0.1), {}, True, "caution", "learned"),
        (weights(0.001), {"agreement": 0.97, "moved": 0.2}, False, "ok", ""),
        (weights(0.0001), {"agreement": 0.97, "moved": 0.2}, False, "caution", "overlap"),
        (weights(0.1), {"agreement": 0.5, "moved": 0.2}, False, "caution", "fit"),
        (weights(0.1), {"agreement": 0.1, "moved": 0.2}, False, "do not trust", "fit"),
        (weights(0.1), {"agreement": 0.97, "moved": 1.4}, False, "caution", "moved"),
    ],
)
def test_the_verdict_follows_the_figures(log_w, figures, learned, verdict, worst):
    told = {name: (value,) for name, value in figures.items()}
    info = reprior.Info("rejuvenate", 100, 1, 0.0, figures=told, _log_w=lambda: log_w)
    adapted = POSTERIOR
    if learned:
        change = PriorChange(PRIOR, POSTERIOR.scales.theta, lambda theta: theta[..., 0], kind="samples")
        adapted = AdaptedPosterior(POSTERIOR, change, find("none")(Problem(POSTERIOR, change)))
    one = Update(2, X[0], adapted, X, info)
    assert one.verdict == verdict
    # Of ten equal weights there is no tail to fit, which counts as a heavy one besides.
    assert [check.name for check in one.checks if check.outcome in ("caution", "stop")][:1] == [worst] * bool(worst)
    assert all(check.meaning and check.title for check in one.checks)
