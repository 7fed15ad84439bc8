"""The verdict: ok on an easy change, a warning where something is wrong, and never a crash on hopeless input."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from bad_bases import deaf, wrong_width
from exact import gaussian_posterior
from torch import distributions as td

import reprior
from reprior.adapted import AdaptedPosterior
from reprior.diagnostics import DiagnoseSettings, Thresholds, diagnose
from reprior.diagnostics.checks import GROUPS, MEANINGS, check
from reprior.errors import InputError
from reprior.methods.learned.guidance import DensityRatioGuidance, RatioModel, RatioSettings
from reprior.methods.method import NoGuidance
from reprior.networks.ratio import RatioNetworkSettings

X = torch.tensor([0.5, -0.3])
LIGHT = DiagnoseSettings(draws=1_000, pool=3_000)


def target(by: float, width: float = 0.7) -> td.MultivariateNormal:
    return td.MultivariateNormal(torch.full((2,), by), width * torch.eye(2))


@pytest.fixture(scope="module")
def posterior():
    return gaussian_posterior(dim=2)[0]


@pytest.fixture(scope="module")
def easy(posterior):
    return diagnose(reprior.adapt(posterior, target(0.4)), X, settings=LIGHT)


def broken(posterior, size: float) -> AdaptedPosterior:
    """A ratio network of random weights."""
    change = reprior.adapt(posterior, target(0.4), method="none").change
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = RatioModel(2, 2, RatioNetworkSettings(), anchored=False)
        torch.nn.init.normal_(model.network.out.weight, std=size)
    guidance = DensityRatioGuidance("nre", model.requires_grad_(False), posterior, change, RatioSettings())
    return AdaptedPosterior(posterior, change, guidance, "random weights")


def test_easy_change_is_ok(easy):
    assert easy.method == "transport"
    assert easy.verdict == "ok"
    assert all(c.outcome in ("pass", "info") for c in easy.checks)


class Stutters(NoGuidance):
    """One draw in ten is not finite."""

    def draw(self, denoiser, n, sampler, generator):
        z, notes = super().draw(denoiser, n, sampler, generator)
        z[::10] = torch.nan
        return z, notes


def test_draws_that_are_not_finite_are_seen_although_they_are_drawn_again(posterior):
    adapted = replace(reprior.adapt(posterior, target(0.4), "none"), guidance=Stutters())
    assert torch.isfinite(adapted.sample((100,), X, seed=0)).all()
    report = diagnose(adapted, X, settings=replace(LIGHT, pairs=0))
    assert report["sampling"].value == pytest.approx(0.9)
    assert report["sampling"].outcome == "stop"


def test_text_names_verdict_and_every_check(easy):
    text = str(easy)
    assert text.startswith("verdict: ok")
    assert all(c.title in text for c in easy.checks)
    assert {c.name for c in easy.checks} == set(MEANINGS) == {n for g in GROUPS.values() for n in g}


def test_report_is_plain_data(easy):
    data = json.loads(json.dumps(easy.to_dict(), allow_nan=False))
    assert data["verdict"] == "ok"
    assert data["about"]["observation"] == pytest.approx(X.tolist())
    assert len(data["checks"]) == len(MEANINGS)


def test_same_seed_same_report(posterior, easy):
    again = diagnose(reprior.adapt(posterior, target(0.4)), X, settings=LIGHT)
    assert [c.value for c in again.checks] == [c.value for c in easy.checks]


@pytest.mark.parametrize(("by", "width"), [(8.0, 0.5), (30.0, 0.5)])
@pytest.mark.parametrize("method", ["auto", "rejuvenate"])
def test_hopeless_shift_is_not_trusted(posterior, by, width, method):
    report = diagnose(reprior.adapt(posterior, target(by, width), method=method), X, settings=LIGHT)
    assert report.verdict == "do not trust"
    assert report["gap"].outcome == "stop" or report["sampling"].outcome == "stop"
    assert report["pairs"].outcome == "caution"


def test_broken_network_is_not_trusted(posterior):
    report = diagnose(broken(posterior, 3.0), X, settings=LIGHT)
    assert report.verdict == "do not trust"
    assert report["correction"].outcome == "stop"


def test_doing_nothing_is_not_ok(posterior):
    narrow = td.MultivariateNormal(torch.tensor([1.5, 0.0]), 0.2 * torch.eye(2))
    report = diagnose(reprior.adapt(posterior, narrow, method="none"), X, settings=LIGHT)
    assert report.verdict == "do not trust"


@pytest.mark.parametrize("factor", [1.4, 0.6])
def test_wrong_width_of_the_base_is_not_ok(factor):
    report = diagnose(reprior.adapt(wrong_width(factor), target(0.2, 0.9)), X, settings=LIGHT)
    assert report.verdict != "ok"
    assert report["sbc"].outcome != "pass"
    assert ("too wide" if factor > 1 else "too narrow") in report["sbc"].note


def test_information_left_in_the_data_is_seen():
    report = diagnose(reprior.adapt(deaf(), target(0.2)), torch.tensor([3.0, 0.0]), settings=LIGHT)
    assert report["leftover"].outcome == "stop"
    assert "theta_1" in report["leftover"].note


def test_far_observation_is_not_ok(posterior):
    report = diagnose(reprior.adapt(posterior, target(0.4)), torch.tensor([7.0, -7.0]), settings=LIGHT)
    assert report["distance"].outcome != "pass"
    assert report.verdict != "ok"


def test_mass_outside_the_support_is_told():
    cube = td.Independent(td.Uniform(torch.full((2,), -2.0), torch.full((2,), 2.0)), 1)
    posterior = replace(gaussian_posterior(dim=2)[0], prior=cube)
    stored = posterior.simulations
    assert stored is not None
    posterior = replace(posterior, simulations=stored.subset((stored.theta.abs() < 2).all(-1)))
    adapted = reprior.adapt(posterior, target(1.5, 0.3), accept_outside=True)
    report = diagnose(adapted, X, settings=replace(LIGHT, pairs=0))
    # Two independent N(1.5, .3) below 2: P = Phi(.913)^2 = .67, so .33 lies outside.
    assert report["support"].value == pytest.approx(0.33, abs=0.03)
    assert report["support"].outcome == "stop"
    assert report["sbc"].outcome == "skipped"


def test_without_x_stored_observations_are_used(posterior):
    report = diagnose(reprior.adapt(posterior, target(0.4)), settings=replace(LIGHT, observations=2))
    assert len(report.scenes) == 2
    assert report.verdict == "ok"
    assert report.about["observation"] is None


def test_without_simulations_it_says_what_is_missing(posterior):
    bare = replace(posterior, simulations=None)
    adapted = reprior.adapt(bare, target(0.4), method="transport")
    report = diagnose(adapted, X, settings=LIGHT)
    assert report["distance"].outcome == "skipped"
    assert report.verdict == "caution"  # it cannot be calibrated
    with pytest.raises(InputError, match="needs the stored simulations"):
        diagnose(adapted)


def test_thresholds_and_settings_are_checked():
    with pytest.raises(InputError, match="'ess' is bad when low"):
        Thresholds(ess=(1e-4, 1e-3))
    with pytest.raises(InputError, match="draws >= 200"):
        DiagnoseSettings(draws=10)
    with pytest.raises(InputError, match="pairs >= 150"):
        DiagnoseSettings(pairs=10)
    with pytest.raises(InputError, match="needs an adapted posterior"):
        diagnose("q2026")  # pyright: ignore[reportArgumentType]


def test_outcomes_follow_the_thresholds():
    lines = Thresholds(reweighted=(0.6, 0.7), ess=(0.1, 0.01))
    assert [check("reweighted", v, lines).outcome for v in (0.6, 0.65, 0.71)] == ["pass", "caution", "stop"]
    assert [check("ess", v, lines).outcome for v in (0.1, 0.05, 0.001)] == ["pass", "caution", "stop"]
    assert check("ess", 0.001, lines, most="caution").outcome == "caution"
    assert check("ess", float("nan"), lines).outcome == "stop"
    assert "0.65, above 0.6" in check("reweighted", 0.65, lines).reason
