"""Calibration under q: uniform where the posterior is right, and not where it is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from bad_bases import wrong_width
from exact import gaussian_posterior
from torch.distributions import MultivariateNormal

import reprior
from reprior.diagnostics.calibration import SBC, TARP, Pairs, calibrate, coverage, ranks, uniformity
from reprior.diagnostics.case import Case
from reprior.diagnostics.check import judge
from reprior.diagnostics.report import DiagnoseSettings, conclude
from reprior.errors import InputError
from reprior.methods.unchanged import NoChange


def moved(dim: int, by: float, width: float = 0.6) -> MultivariateNormal:
    return MultivariateNormal(torch.full((dim,), by), width * torch.eye(dim))


def test_p_values_are_uniform_when_nothing_is_wrong():
    generator = torch.Generator().manual_seed(0)
    weights = torch.ones(120)
    found = torch.tensor(
        [uniformity(torch.rand(120, generator=generator, dtype=torch.float64), weights) for _ in range(300)]
    )
    # A p value under 0.1 has probability 0.1: binomial standard error sqrt(.09 / 300) = 0.017; four of them.
    for column in found.T:
        assert abs(float((column < 0.1).double().mean()) - 0.1) < 0.07


def test_copies_are_not_witnesses():
    generator = torch.Generator().manual_seed(1)
    u = torch.rand(60, generator=generator, dtype=torch.float64) * 0.8  # not uniform
    once = uniformity(u, torch.ones(60))
    assert uniformity(u, torch.full((60,), 5.0)) == pytest.approx(once)
    assert uniformity(u.repeat(5), torch.ones(300))[0] < 1e-3 * once[0]


def test_ranks_and_coverage_of_exchangeable_draws_are_uniform():
    generator = torch.Generator().manual_seed(2)
    centre = torch.randn(2_000, 3, generator=generator)
    draws = centre + torch.randn(50, 2_000, 3, generator=generator)
    theta = centre + torch.randn(2_000, 3, generator=generator)
    weights = torch.ones(2_000)
    u = ranks(draws, theta, generator)
    assert min(min(uniformity(u[:, i], weights)) for i in range(3)) > 1e-3
    assert min(uniformity(coverage(draws, theta, torch.ones(3), generator), weights)) > 1e-3
    wide = coverage(centre + 1.3 * (draws - centre), theta, torch.ones(3), generator)
    assert min(uniformity(wide, weights)) < 1e-4


def test_right_posterior_passes_under_a_changed_prior():
    posterior, _ = gaussian_posterior(dim=3)
    found = calibrate(reprior.adapt(posterior, moved(3, 0.5)), seed=4)
    assert found.why_not == ""
    assert found.n_eff >= 100
    assert found.sbc_p > 0.01
    assert found.tarp_p > 0.01


@pytest.mark.parametrize("factor", [1.4, 0.6])
def test_wrong_width_is_caught(factor):
    # Ranks of a posterior 1.4 times too wide have a variance of .054 instead of .083 (.6: .118): 7 to 8 standard errors
    # of sqrt(1/180/300) = .0043 with 300 pairs.
    adapted = reprior.adapt(wrong_width(factor), moved(2, 0.3, 0.8))
    found = calibrate(adapted, seed=5)
    assert found.sbc_p < 0.01
    for ratio in found.spread:
        assert (ratio < 0.93) if factor > 1 else (ratio > 1.07)


def test_doing_nothing_is_caught():
    posterior, _ = gaussian_posterior(dim=2, c=1.0)
    adapted = reprior.adapt(posterior, moved(2, 1.0, 0.5), method="none")
    assert calibrate(adapted, seed=6).sbc_p < 1e-4


def test_too_few_pairs_are_said():
    posterior, _ = gaussian_posterior(dim=2)
    found = calibrate(reprior.adapt(posterior, moved(2, 4.0, 0.2)), seed=7)
    assert "too few" in found.why_not
    assert found.effective < 50


def test_fewer_rows_than_effective_pairs_asked_for_is_no_failure():
    posterior, _ = gaussian_posterior(dim=2)
    adapted = reprior.adapt(posterior, moved(2, 0.5), "sir")  # a third of the pairs are looked at
    found = calibrate(adapted, pairs=240, draws=40, fewest=100.0, seed=1)
    assert (found.failed, found.why_not) == (False, "")


def test_bad_sizes_are_named():
    posterior, _ = gaussian_posterior(dim=2)
    with pytest.raises(InputError, match="got 5 and 50"):
        calibrate(reprior.adapt(posterior, moved(2, 0.5)), pairs=5)


class Refuses(NoChange):
    """Draws at one observation, and not at many."""

    def draw(self, denoiser, n, sampler, generator):
        if denoiser.observations > 1:
            raise InputError("no draw there")
        return super().draw(denoiser, n, sampler, generator)


def test_a_method_that_fails_at_stored_observations_is_never_ok():
    posterior, _ = gaussian_posterior(dim=2)
    adapted = reprior.adapt(posterior, moved(2, 0.3), "none")
    adapted = replace(adapted, method=Refuses(adapted.method.problem))
    case = Case(adapted, (), 0, DiagnoseSettings())
    assert case.calibration.failed
    outcomes = [judge(check, check.look(case)) for check in (Pairs(), SBC(), TARP())]
    assert [one.outcome for one in outcomes] == ["pass", "caution", "caution"]
    verdict, reasons = conclude(outcomes)
    assert verdict == "caution"
    assert any("The method cannot draw at the stored observations: no draw there." in reason for reason in reasons)


class Loses(NoChange):
    """Cannot draw at the last of several observations, and says so."""

    def draw(self, denoiser, n, sampler, generator):
        drawn = super().draw(denoiser, n, sampler, generator)
        if denoiser.observations == 1:
            return drawn
        drawn.theta[:, -1] = torch.nan
        return replace(drawn, failed={denoiser.observations - 1: "no pool there"})


def test_one_observation_that_is_lost_is_not_left_out_silently():
    posterior, _ = gaussian_posterior(dim=2)
    adapted = reprior.adapt(posterior, moved(2, 0.3), "none")
    found = calibrate(replace(adapted, method=Loses(adapted.method.problem)), seed=0)
    assert found.failed
    assert "no pool there" in found.why_not


def test_a_calibration_is_made_once_and_only_where_it_is_asked_for(monkeypatch):
    from reprior.diagnostics import case as module

    made = []
    monkeypatch.setattr(module, "calibrate", lambda *a, **k: made.append(a) or calibrate(*a, **k))
    posterior, _ = gaussian_posterior(dim=2)
    adapted = reprior.adapt(posterior, moved(2, 0.5))
    case = Case(adapted, (), 3, DiagnoseSettings(pairs=150, ranks=20))
    assert not made
    assert TARP().look(case).value == case.calibration.tarp_p == calibrate(adapted, 150, 20, seed=3).tarp_p
    assert SBC().look(case).value == case.calibration.sbc_p
    assert len(made) == 1
    again = Case(adapted, (), 3, DiagnoseSettings(), given=case.calibration)
    assert again.calibration is case.calibration
    assert len(made) == 1
