"""Whether the question is within what was simulated."""

from __future__ import annotations

from dataclasses import replace

import torch
from exact import gaussian_posterior
from torch.distributions import MultivariateNormal

import reprior
from reprior.diagnostics.case import Case
from reprior.diagnostics.check import judge
from reprior.diagnostics.draws import Scene
from reprior.diagnostics.question import Distance, Sampling
from reprior.diagnostics.report import DiagnoseSettings
from reprior.distance import x_distance


def test_distance_grows_outside_the_simulations():
    posterior, _ = gaussian_posterior(dim=2)
    # 99 in 100 simulations stay under 1: of x = theta + noise with variance 1.3, the centre is dense, 8 is empty.
    assert x_distance(posterior.simulations, posterior.scales.x, torch.zeros(1, 2), seed=0) < 0.3
    far = x_distance(posterior.simulations, posterior.scales.x, torch.full((1, 2), 8.0), seed=0)
    assert far > 3
    assert x_distance(posterior.simulations, posterior.scales.x, torch.tensor([[8.0, float("nan")]]), seed=0) > 3


def case_of(*finite: float) -> Case:
    """A case with one scene for each fraction of finite draws, each further out than the one before."""
    posterior, _ = gaussian_posterior(dim=2)
    adapted = reprior.adapt(posterior, MultivariateNormal(torch.zeros(2), 0.5 * torch.eye(2)), "none")
    none, flat = torch.zeros(0, 2), torch.zeros(0)
    scenes = [Scene(torch.full((1, 2), 4.0 * i), none, none, flat, flat, part) for i, part in enumerate(finite)]
    return Case(adapted, tuple(scenes), 0, DiagnoseSettings())


def test_the_worst_observation_counts():
    case = case_of(1.0, 0.995)
    assert judge(Sampling(), Sampling().look(case)).outcome == "caution"
    far = case.scenes[1].x
    assert case.simulations is not None
    assert Distance().look(case).value == x_distance(case.simulations, case.posterior.scales.x, far, seed=0) > 1


def test_too_few_simulations_tell_no_distance():
    case = case_of(1.0)
    assert case.simulations is not None
    few = replace(case.posterior, simulations=case.simulations.subset(torch.arange(len(case.simulations)) < 10))
    found = judge(Distance(), Distance().look(replace(case, adapted=replace(case.adapted, posterior=few))))
    assert found.outcome == "stop"
    assert "no figure. 10 stored simulations are too few" in found.reason
