"""What all tasks share: names, priors as the paper states them, shapes, seeds and errors."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Independent, Normal

from reprior import priors
from reprior.errors import InputError
from reprior_bench import tasks

ONES6, EYE6 = torch.ones(6, 6), torch.eye(6)

# (mean, covariance) of p and q, typed from the paper's appendix; mixtures by their overall moments.
PAPER = {
    ("two_moons", "id"): (
        ([0, 0], [[1.5, 0.6], [0.6, 1.5]]),
        ([0.3, 0.5], [[0.16, 0], [0, 0.09]]),
    ),
    ("two_moons", "ood"): (
        ([-0.3, 0.2], [[1.4, 0.6], [0.6, 1.4]]),
        ([0, 0], [[1.2, -0.2], [-0.2, 1.2]]),
    ),
    ("gaussian_linear", "id"): (
        ([0] * 6, 0.2 * ONES6 + 0.8 * EYE6),
        ([0] * 6, 0.2 * ONES6 + 0.8 * EYE6 + 0.36 * ONES6),  # + 0.6^2 between the two means
    ),
    ("gaussian_linear", "ood"): (
        ([0] * 6, -0.1 * ONES6 + 1.1 * EYE6),
        ([1.1] * 6, 0.2 * ONES6 + 0.8 * EYE6),
    ),
    ("slcp", "id"): (
        ([0] * 5, torch.diag(torch.tensor([1.0, 4.0, 1.0, 1.0, 1.0]))),
        ([1, 0.5, 0, 0, 0], torch.diag(torch.tensor([0.25, 1.0, 1.0, 0.25, 1.0]))),
    ),
    ("slcp", "ood"): (
        ([0, 2, 0, 0, 0], torch.diag(torch.tensor([0.25, 1.0, 0.36, 1.0, 0.64]))),
        ([1, 0.5, 0, 0, 0], torch.diag(torch.tensor([0.25, 1.0, 1.0, 0.25, 1.0]))),
    ),
    ("oup", "id"): (([2, 0], 0.5 * torch.eye(2)), ([1.8, 0], 0.3 * torch.eye(2))),
    ("oup", "ood"): (([1.5, 1.5], 0.5 * torch.eye(2)), ([1.8, 0], 0.5 * torch.eye(2))),
    ("turin", "id"): (
        ([0.64, 0.55, 0.5, 0.6], torch.diag(torch.tensor([0.05, 0.08, 0.07, 0.1]) ** 2)),
        ([0.6, 0.5, 0.5, 0.5], torch.diag(torch.tensor([0.02, 0.05, 0.05, 0.06]) ** 2)),
    ),
    ("turin", "ood"): (
        ([0.7, 0.6, 0.65, 0.35], torch.diag(torch.tensor([0.04, 0.07, 0.06, 0.06]) ** 2)),
        ([0.6, 0.5, 0.5, 0.5], torch.diag(torch.tensor([0.02, 0.05, 0.05, 0.06]) ** 2)),
    ),
}


@pytest.mark.parametrize(("name", "regime"), PAPER)
def test_priors_are_those_of_the_paper(name, regime):
    task = tasks.get(name)
    both = (task.training_prior(regime), task.target_prior(regime))
    for prior, (mean, covariance) in zip(both, PAPER[name, regime], strict=True):
        theta = priors.sample(prior, 400_000, seed=0).double()
        scale = torch.as_tensor(covariance, dtype=torch.float64).diagonal().sqrt()
        # Standard errors: sd/632 for a mean, at most sqrt(2) sd_i sd_j / 632 for a covariance; five of them.
        assert ((theta.mean(0) - torch.tensor(mean)).abs() / scale).max() < 5 / 632
        error = torch.cov(theta.T) - torch.as_tensor(covariance)
        assert (error.abs() / (scale[:, None] * scale)).max() < 5 * 2**0.5 / 632


def test_gaussian_linear_target_is_two_modes():
    # Equal moments would hide a single wide Gaussian: along the diagonal the mixture is flatter (kurtosis below 3).
    mean = priors.sample(tasks.get("gaussian_linear").target_prior("id"), 200_000, seed=1).mean(-1)
    kurtosis = float(((mean - mean.mean()) ** 4).mean() / mean.var() ** 2)
    # mean ~ +-0.6 + N(0, v), v = 0.2 + 0.8/6: kurtosis (0.1296 + 6 * 0.36 v + 3 v^2) / (0.36 + v)^2
    v = 0.2 + 0.8 / 6
    assert kurtosis == pytest.approx((0.1296 + 2.16 * v + 3 * v**2) / (0.36 + v) ** 2, abs=0.05)


@pytest.mark.parametrize("name", tasks.names())
def test_shapes_types_and_seeds(name):
    task = tasks.get(name)
    assert len(task.parameters) == task.dim
    assert task.reference_kind
    assert task.description
    for regime in task.regimes:
        theta, x = task.observations(regime, 7, seed=3)
        assert theta.shape == (7, task.dim)
        assert x.shape == (7, task.x_dim)
        assert theta.dtype == x.dtype == torch.float32
        assert torch.isfinite(x).all()
        state = torch.random.get_rng_state()
        again = task.observations(regime, 7, seed=3)
        assert torch.equal(state, torch.random.get_rng_state())
        assert torch.equal(again[0], theta)
        assert torch.equal(again[1], x)
        assert torch.equal(task.simulate(theta, seed=5), task.simulate(theta, seed=5))
        assert not torch.equal(task.simulate(theta, seed=5), task.simulate(theta, seed=6))


@pytest.mark.parametrize("name", [n for n in tasks.names() if n != "turin_physical"])
def test_references_repeat_with_their_seed_and_hold_no_duplicates(name):
    task = tasks.get(name)
    _, x = task.observations("id", 1, seed=0)
    first = task.reference(x, 500, "id", seed=4)  # (1, x_dim)
    assert first.dtype == torch.float32
    assert first.shape == (500, task.dim)
    assert torch.equal(first, task.reference(x[0], 500, "id", seed=4))
    assert not torch.equal(first, task.reference(x[0], 500, "id", seed=5))
    assert len(torch.unique(first, dim=0)) == 500


def test_unknown_task_names_the_allowed_ones():
    with pytest.raises(InputError, match=r"unknown task 'moons'.*two_moons.*turin_physical"):
        tasks.get("moons")


@pytest.mark.parametrize("name", tasks.names())
def test_wrong_input_is_refused(name):
    task = tasks.get(name)
    theta, x = task.observations("id", 2, seed=0)
    with pytest.raises(InputError, match="unknown regime 'far'; allowed: id, ood"):
        task.training_prior("far")
    with pytest.raises(InputError, match="unknown prior 'posterior'"):
        task.reference(x[0], 10, "id", prior="posterior")
    with pytest.raises(InputError, match=rf"shape \(n, {task.dim}\)"):
        task.simulate(theta[0], seed=0)
    with pytest.raises(InputError, match=rf"shape \(n, {task.dim}\)"):
        task.simulate(torch.zeros(3, task.dim + 1), seed=0)
    with pytest.raises(InputError, match="finite theta"):
        task.simulate(torch.full((1, task.dim), torch.nan), seed=0)
    with pytest.raises(InputError, match="one observation"):
        task.reference(x, 10, "id")
    with pytest.raises(InputError, match="NaN"):
        task.reference(torch.full_like(x[0], torch.nan), 10, "id")
    with pytest.raises(InputError, match="at least 1"):
        task.reference(x[0], 0, "id")
    with pytest.raises(InputError, match="the prior draws 9 parameters"):
        task.reference(x[0], 10, "id", prior=Independent(Normal(torch.zeros(9), torch.ones(9)), 1))
    with pytest.raises(InputError, match="bool mask"):
        task.predict_reference(x[0], torch.ones(task.x_dim), 10, "id")


@pytest.mark.parametrize("name", ["two_moons", "gaussian_linear", "slcp", "turin_physical"])
def test_tasks_without_a_predictive_say_so(name):
    task = tasks.get(name)
    _, x = task.observations("id", 1, seed=0)
    with pytest.raises(InputError, match="no reference predictive"):
        task.predict_reference(x[0], torch.arange(task.x_dim) < 1, 10, "id")
