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
from reprior.diagnostics import CHECKS, DiagnoseSettings, diagnose
from reprior.errors import InputError
from reprior.methods.learned import NRE, RatioSettings
from reprior.methods.learned.model import RatioModel
from reprior.methods.learned.training import Learned
from reprior.methods.unchanged import NoChange
from reprior.networks.fit import FitResult
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
    adapted = reprior.adapt(posterior, target(0.4), method="none")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = RatioModel(2, 2, RatioNetworkSettings(), with_plug_in=False)
        torch.nn.init.normal_(model.network.out.weight, std=size)
    learned = Learned(model.requires_grad_(False), None, FitResult(0, 0, 0.0, [], 0.0, "not trained"), {})
    return replace(adapted, method=NRE(adapted.method.problem, RatioSettings(), learned))


def test_easy_change_is_ok(easy):
    assert easy.method == "transport"
    assert easy.verdict == "ok"
    assert all(c.outcome in ("pass", "info") for c in easy.checks)


class Stutters(NoChange):
    """One draw in ten is not finite."""

    def draw(self, denoiser, n, sampler, generator):
        drawn = super().draw(denoiser, n, sampler, generator)
        drawn.theta[::10] = torch.nan
        return drawn


def test_draws_that_are_not_finite_are_seen_although_they_are_drawn_again(posterior):
    plain = reprior.adapt(posterior, target(0.4), "none")
    adapted = replace(plain, method=Stutters(plain.method.problem))
    assert torch.isfinite(adapted.sample((100,), X, seed=0)).all()
    report = diagnose(adapted, X, settings=replace(LIGHT, pairs=0))
    assert report["sampling"].value == pytest.approx(0.9)
    assert report["sampling"].outcome == "stop"


class Silent(NoChange):
    """No draw is finite."""

    def draw(self, denoiser, n, sampler, generator):
        drawn = super().draw(denoiser, n, sampler, generator)
        return replace(drawn, theta=torch.full_like(drawn.theta, torch.nan))


def test_no_finite_draw_at_all_is_not_trusted(posterior, tmp_path):
    plain = reprior.adapt(posterior, target(0.4), "none")
    report = diagnose(replace(plain, method=Silent(plain.method.problem)), X, settings=LIGHT)
    assert report.verdict == "do not trust"
    assert any("no adapted sample is finite" in reason for reason in report.reasons)
    assert report["sbc"].outcome == "caution"
    assert report["reweighted"].note == "there are too few adapted samples"
    assert "do not trust" in report.to_html(tmp_path / "silent.html").read_text(encoding="utf-8")


def test_text_names_verdict_and_every_check(easy):
    text = str(easy)
    assert text.startswith("verdict: ok")
    assert all(c.title in text for c in easy.checks)
    names = ["sampling", "support", "distance", "local_simulations", "residual_information", "ess", "gap", "k_hat"]
    names += ["correction", "reweighted", "agreement", "pairs", "sbc", "tarp"]
    assert [c.name for c in easy.checks] == names == [c.name for c in CHECKS]


def test_report_is_plain_data(easy):
    data = json.loads(json.dumps(easy.to_dict(), allow_nan=False))
    assert data["verdict"] == "ok"
    assert data["about"]["observation"] == pytest.approx(X.tolist())
    assert len(data["checks"]) == len(CHECKS)


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
    assert report["residual_information"].outcome == "stop"
    assert "theta_1" in report["residual_information"].note


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


def test_settings_are_checked():
    with pytest.raises(InputError, match="'ess' is bad when low"):
        DiagnoseSettings(thresholds={"ess": (1e-4, 1e-3)})
    with pytest.raises(InputError, match=r"no check 'share'.*sampling, support"):
        DiagnoseSettings(thresholds={"share": (1.0, 0.0)})
    with pytest.raises(InputError, match=r"must be \(caution, stop\)"):
        DiagnoseSettings(thresholds={"ess": (1.0,)})  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="draws >= 200"):
        DiagnoseSettings(draws=10)
    with pytest.raises(InputError, match="pairs >= 150"):
        DiagnoseSettings(pairs=10)
    with pytest.raises(InputError, match="needs an adapted posterior"):
        diagnose("q2026")  # pyright: ignore[reportArgumentType]


def test_thresholds_can_be_replaced(posterior, easy):
    value = easy["ess"].value
    settings = replace(LIGHT, pairs=0, thresholds={"ess": (value + 0.1, value + 0.05)})
    report = diagnose(reprior.adapt(posterior, target(0.4)), X, settings=settings)
    assert report.verdict == "do not trust"
    assert report["ess"].outcome == "stop"
    assert [c.name for c in report.checks if c.outcome == "stop"] == ["ess"]
    assert f"below {value + 0.05:.3g}" in report.reasons[0]


def test_a_bar_counts_observations_and_checks(posterior, capsys):
    diagnose(reprior.adapt(posterior, target(0.4), "none"), X, settings=replace(LIGHT, pairs=0), progress=True)
    assert f"{1 + len(CHECKS)}/{1 + len(CHECKS)}" in capsys.readouterr().err
    diagnose(reprior.adapt(posterior, target(0.4), "none"), X, settings=replace(LIGHT, pairs=0))
    assert capsys.readouterr().err == ""


def test_sbi_is_named_only_where_it_is_installed(posterior, monkeypatch, tmp_path):
    from importlib import metadata

    def absent(name):
        raise metadata.PackageNotFoundError(name)

    adapted = reprior.adapt(posterior, target(0.4), "none")
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", absent)
        report = diagnose(adapted, X, settings=replace(LIGHT, pairs=0))
    assert "sbi" not in report.about
    assert ", sbi" not in report.to_html(tmp_path / "bare.html").read_text(encoding="utf-8")
    monkeypatch.setattr(metadata, "version", lambda name: "0.99")
    report = diagnose(adapted, X, settings=replace(LIGHT, pairs=0))
    assert report.about["sbi"] == "0.99"
    assert ", sbi 0.99" in report.to_html(tmp_path / "sbi.html").read_text(encoding="utf-8")
