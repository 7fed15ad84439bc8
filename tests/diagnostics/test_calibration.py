"""Calibration under q: uniform where the posterior is right, and not where it is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from bad_bases import wrong_width
from exact import gaussian_posterior
from torch.distributions import MultivariateNormal

import reprior
from reprior.diagnostics.calibration import calibrate, coverage, ranks, uniformity
from reprior.diagnostics.checks import Thresholds
from reprior.diagnostics.verdict import _calibration, _conclude
from reprior.errors import InputError
from reprior.methods.method import NoGuidance


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
    found = calibrate(adapted, pairs=240, draws=40, least=100.0, seed=1)
    assert (found.failed, found.why_not) == (False, "")


def test_bad_sizes_are_named():
    posterior, _ = gaussian_posterior(dim=2)
    with pytest.raises(InputError, match="got 5 and 50"):
        calibrate(reprior.adapt(posterior, moved(2, 0.5)), pairs=5)


class Refuses(NoGuidance):
    """Draws at one observation, and not at many."""

    def draw(self, denoiser, n, sampler, generator):
        if denoiser.observations > 1:
            raise InputError("no draw there")
        return super().draw(denoiser, n, sampler, generator)


def test_a_method_that_fails_at_stored_observations_is_never_ok():
    posterior, _ = gaussian_posterior(dim=2)
    found = calibrate(replace(reprior.adapt(posterior, moved(2, 0.3), "none"), guidance=Refuses()), seed=0)
    assert found.failed
    verdict, reasons = _conclude(tuple(_calibration(found, Thresholds())))
    assert verdict == "caution"
    assert any("The method cannot draw at the stored observations: no draw there." in reason for reason in reasons)
