"""Comparisons at one observation, on the exact Gaussian base."""

from __future__ import annotations

import math

import pytest
import torch
from exact import gaussian_posterior
from torch.distributions import Independent, MultivariateNormal, StudentT

import reprior
from reprior.diagnostics.compare import against_reweighted, agreement, correction_ess, weighted_c2st
from reprior.diagnostics.draws import Scene, make_scene
from reprior.distance import x_distance
from reprior.methods.rejuvenate import RejuvenateSettings

X = torch.tensor([[0.4, -0.2]])


def target(by: float, width: float = 0.6) -> MultivariateNormal:
    return MultivariateNormal(torch.full((2,), by), width * torch.eye(2))


@pytest.fixture(scope="module")
def posterior():
    return gaussian_posterior(dim=2)[0]


def scene_of(adapted, seed=0):
    return make_scene(adapted, X, pool=3_000, n=1_500, seed=seed)


def shifted(scene: Scene, adapted, by: float) -> Scene:
    theta = scene.adapted + by * scene.adapted.std(0)
    return Scene(X, scene.base, theta, scene.log_r, adapted.change.log_r(theta).double(), 1.0, "", 0.0)


def test_weighted_classifier_sees_weights():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(3_000, 2, generator=generator), torch.randn(1_500, 2, generator=generator)
    b[:, 0] += 1.0
    flat, tilt = torch.zeros(len(a)), a[:, 0] - 0.5  # tilt turns N(0, 1) into N(1, 1)
    # Standard error with about 1,100 effective samples a side: .25 sqrt(2 / 1100) = .011; the margin is four of them.
    assert abs(weighted_c2st(a, tilt, b, torch.zeros(len(b))) - 0.5) < 0.045
    # Unweighted, the Bayes accuracy is Phi(1/2) = .69.
    assert weighted_c2st(a, flat, b, torch.zeros(len(b))) > 0.64


@pytest.mark.parametrize(("by", "where"), [(0.5, "at the target"), (2.0, "between")])
def test_reweighted_base_samples_agree_with_transport(posterior, by, where):
    adapted = reprior.adapt(posterior, target(by), method="transport")
    scene = scene_of(adapted)
    found = against_reweighted(adapted, scene, 1)
    assert where in found.note
    assert abs(found.value - 0.5) < 0.05
    assert against_reweighted(adapted, shifted(scene, adapted, 0.7), 1).value > 0.57


def test_no_common_ground_is_said(posterior):
    adapted = reprior.adapt(posterior, target(2.0, 0.1), method="transport")
    found = against_reweighted(adapted, scene_of(adapted), 1)
    assert math.isnan(found.value)
    assert "too few" in found.note


def test_two_methods_agree_or_not(posterior):
    adapted = reprior.adapt(posterior, target(1.0), method="transport")
    scene = scene_of(adapted)
    found = agreement(adapted, scene, 2)
    assert "rejuvenate" in found.note
    assert found.value < 0.55  # 1,000 against 1,000: standard error .011
    assert agreement(adapted, shifted(scene, adapted, 0.7), 2).value > 0.57


def test_where_transport_cannot_the_second_method_takes_smaller_steps(posterior):
    # q is wider than p, more than transport can express at the width of this posterior.
    adapted = reprior.adapt(posterior, target(0.5, 6.0), method="rejuvenate")
    found = agreement(adapted, scene_of(adapted), 2)
    assert "smaller steps" in found.note
    assert found.value < 0.55


def test_an_anchor_is_compared_with_another_kernel(posterior):
    # A narrow core with heavy tails in tempered steps: the anchor loses the tails, also in smaller steps.
    narrow = Independent(StudentT(2.0, torch.full((2,), 1.5), torch.full((2,), 0.05)), 1)
    wrong = reprior.adapt(posterior, narrow, "rejuvenate", RejuvenateSettings(below="anchor", s0=0.2))
    found = agreement(wrong, scene_of(wrong), 2)
    assert "moves that are accepted" in found.note
    assert found.value > 0.57
    right = reprior.adapt(posterior, narrow)
    assert agreement(right, scene_of(right), 2).value < 0.57


def test_correction_is_even_for_exact_guidance_only(posterior):
    exact = reprior.adapt(posterior, target(0.7), method="transport")
    assert correction_ess(exact, scene_of(exact), 0).value > 0.95
    nothing = reprior.adapt(posterior, target(0.7), method="rejuvenate")
    found = correction_ess(nothing, scene_of(nothing), 0)
    assert math.isnan(found.value)
    assert "works on a pool of samples" in found.note


def test_distance_grows_outside_the_simulations(posterior):
    # 99 in 100 simulations stay under 1: of x = theta + noise with variance 1.3, the centre is dense, 8 is empty.
    assert x_distance(posterior.simulations, posterior.scales.x, torch.zeros(1, 2), seed=0) < 0.3
    far = x_distance(posterior.simulations, posterior.scales.x, torch.full((1, 2), 8.0), seed=0)
    assert far > 3
    assert x_distance(posterior.simulations, posterior.scales.x, torch.tensor([[8.0, float("nan")]]), seed=0) > 3
