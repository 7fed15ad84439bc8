"""Simulation-based calibration for the references of the tasks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from reprior_bench.tasks import Task


def uniform_p_value(ranks: Tensor, draws: int) -> float:
    """The p-value of a chi-square test, in ten bins, that ranks in 0..draws are uniform."""
    counts = torch.histc(ranks.double(), bins=10, min=-0.5, max=draws + 0.5)
    expected = len(ranks) / 10
    return float(chi2.sf(float(((counts - expected) ** 2 / expected).sum()), 9))


def calibration(
    task: Task,
    regime: str,
    count: int,
    statistics: Callable[[Tensor], Tensor],
    prior: str = "target",
    seed: int = 0,
) -> list[float]:
    """p-values of the ranks of statistics(theta_star) among 99 reference draws, one for each statistic.

    theta_star and x are drawn from the target prior and the simulator, so that the ranks are uniform on 0..99
    if and only if (for these statistics) the reference draws come from the posterior under the target prior.
    """
    theta_star, x = task.observations(regime, count, seed)
    ranks = []
    for i in range(count):
        drawn = statistics(task.reference(x[i], 99, regime, prior, seed=i))
        ranks.append((drawn < statistics(theta_star[i : i + 1])).sum(0))
    return [uniform_p_value(column, 99) for column in torch.stack(ranks).T]


@pytest.fixture(name="calibration")
def calibration_fixture() -> Callable[..., list[float]]:
    return calibration
