"""Other ways to the same posterior, at one observation of the exact Gaussian base."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from exact import gaussian_posterior
from torch.distributions import Independent, MultivariateNormal, StudentT

import reprior
from reprior.diagnostics.case import Case
from reprior.diagnostics.change import Agreement, Correction, KHat, Reweighted
from reprior.diagnostics.check import judge
from reprior.diagnostics.draws import Scene, make_scene
from reprior.diagnostics.report import DiagnoseSettings
from reprior.methods.rejuvenate import RejuvenateSettings

X = torch.tensor([[0.4, -0.2]])


def target(by: float, width: float = 0.6) -> MultivariateNormal:
    return MultivariateNormal(torch.full((2,), by), width * torch.eye(2))


@pytest.fixture(scope="module")
def posterior():
    return gaussian_posterior(dim=2)[0]


def case_of(adapted, seed: int) -> Case:
    scene = make_scene(adapted, X, pool=3_000, n=1_500, seed=0)
    return Case(adapted, (scene,), seed, DiagnoseSettings())


def shifted(case: Case, by: float) -> Case:
    """The same case with all adapted samples moved by some standard deviations."""
    (scene,) = case.scenes
    theta = scene.adapted + by * scene.adapted.std(0)
    moved = Scene(X, scene.base, theta, scene.log_r, case.change.log_r(theta).double(), 1.0)
    return replace(case, scenes=(moved,))


@pytest.mark.parametrize(("by", "where"), [(0.5, "at the target"), (2.0, "between")])
def test_reweighted_base_samples_agree_with_transport(posterior, by, where):
    case = case_of(reprior.adapt(posterior, target(by), method="transport"), 1)
    found = Reweighted().look(case)
    assert where in found.note
    assert abs(found.value - 0.5) < 0.05
    assert Reweighted().look(shifted(case, 0.7)).value > 0.57


def test_no_common_ground_is_said(posterior):
    found = Reweighted().look(case_of(reprior.adapt(posterior, target(2.0, 0.1), method="transport"), 1))
    assert math.isnan(found.value)
    assert "too few" in found.note


def test_two_methods_agree_or_not(posterior):
    case = case_of(reprior.adapt(posterior, target(1.0), method="transport"), 2)
    found = Agreement().look(case)
    assert "rejuvenate" in found.note
    assert found.value < 0.55  # 1,000 against 1,000: standard error .011
    assert Agreement().look(shifted(case, 0.7)).value > 0.57


def test_where_transport_cannot_the_second_method_takes_smaller_steps(posterior):
    # q is wider than p, more than transport can express at the width of this posterior.
    found = Agreement().look(case_of(reprior.adapt(posterior, target(0.5, 6.0), method="rejuvenate"), 2))
    assert "smaller steps" in found.note
    assert found.value < 0.55


def test_a_plug_in_value_is_compared_with_another_kernel(posterior):
    # A narrow core with heavy tails in tempered steps: the plug-in value loses the tails, also in smaller steps.
    narrow = Independent(StudentT(2.0, torch.full((2,), 1.5), torch.full((2,), 0.05)), 1)
    wrong = reprior.adapt(posterior, narrow, "rejuvenate", RejuvenateSettings(kernel="plug_in", s0=0.2))
    found = Agreement().look(case_of(wrong, 2))
    assert "moves that are accepted" in found.note
    assert found.value > 0.57
    assert Agreement().look(case_of(reprior.adapt(posterior, narrow), 2)).value < 0.57


def test_a_second_opinion_that_is_missing_is_explained(posterior):
    same = Agreement().look(case_of(reprior.adapt(posterior, target(0.0, 1.0)), 0))
    assert (math.isnan(same.value), same.note) == (True, "the prior does not change")
    steps = reprior.adapt(posterior, lambda theta: (4 * (theta.detach() > 1.5).double()).sum(-1), "sir")
    none = Agreement().look(case_of(steps, 0))
    assert math.isnan(none.value)
    assert "no second method is cheap" in none.note


def test_correction_is_even_for_exact_guidance_only(posterior):
    exact = case_of(reprior.adapt(posterior, target(0.7), method="transport"), 0)
    assert Correction().look(exact).value > 0.95
    pooled = Correction().look(case_of(reprior.adapt(posterior, target(0.7), method="rejuvenate"), 0))
    assert math.isnan(pooled.value)
    assert "works on samples" in pooled.note
    nothing = Correction().look(case_of(reprior.adapt(posterior, target(0.7), method="none"), 0))
    assert nothing.note == "nothing is guided"
    dear = Correction().look(replace(exact, settings=DiagnoseSettings(density_dim=1)))
    assert "beyond 1 parameters" in dear.note


def test_reweighted_base_samples_are_judged_by_their_weights_and_not_by_themselves(posterior):
    resampled = case_of(reprior.adapt(posterior, target(0.7), method="sir"), 0)
    assert "themselves reweighted" in Reweighted().look(resampled).note
    assert judge(KHat(), KHat().look(resampled)).outcome == "pass"
    moved = case_of(reprior.adapt(posterior, target(0.7), method="transport"), 0)
    assert judge(KHat(), KHat().look(moved)).outcome == "info"
