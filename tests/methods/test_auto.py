"""method="auto" chooses as its sentence says."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from exact import exact_posterior, gaussian_posterior, problem_of
from scipy import stats as scipy_stats
from torch.distributions import Categorical, Independent, Laplace, MixtureSameFamily, MultivariateNormal, Uniform

import reprior
from reprior.errors import InputError
from reprior.methods import RejuvenateSettings, find, registered
from reprior.methods.auto import Auto, typical_ess
from reprior.methods.learned import PAPER

stats: Any = scipy_stats  # its annotations take numbers only

FULL, _ = gaussian_posterior(dim=2, c=0.3)
SCALAR, _ = gaussian_posterior(dim=2, c=0.3, noise="scalar")
NARROW = MultivariateNormal(torch.tensor([0.5, 0.0]), torch.diag(torch.tensor([0.3, 0.6])))
WIDE = MultivariateNormal(torch.zeros(2), 3 * torch.eye(2))
SHIFT = MultivariateNormal(torch.tensor([1.5, 0.0]), torch.eye(2))
MIXTURE = MixtureSameFamily(
    Categorical(torch.ones(2)), MultivariateNormal(torch.eye(2), 0.3 * torch.eye(2).expand(2, 2, 2))
)
LAPLACE = Independent(Laplace(torch.zeros(2), torch.full((2,), 0.5)), 1)
FAR = Independent(Laplace(torch.full((2,), 5.0), torch.full((2,), 0.05)), 1)
BOX = Uniform(torch.full((2,), 0.5), torch.full((2,), 0.55))
FROZEN = stats.multivariate_t([0.3, 0.3], [[0.5, 0.0], [0.0, 0.5]], df=4)


def blind_far(theta: torch.Tensor) -> torch.Tensor:
    return FAR.log_prob(theta).detach()


def chosen(posterior, target) -> tuple[str, str]:
    method = Auto.build(problem_of(posterior, target))
    return method.name, method.why


@pytest.mark.parametrize(
    ("posterior", "target", "method", "reason"),
    [
        (FULL, NARROW, "transport", "a Gaussian change that this base expresses exactly, with no training"),
        (FULL, MIXTURE, "transport", "a mixture of Gaussian changes that this base expresses exactly"),
        (SCALAR, NARROW, "rejuvenate", "not transport, as this change needs a base trained with noise='diagonal'"),
        (FULL, WIDE, "rejuvenate", "not transport, as q is wider than p"),
        (FULL, SHIFT, "rejuvenate", "not transport, as it could start no higher than at noise"),
        (
            FULL,
            LAPLACE,
            "rejuvenate",
            "one resampling step and a guided denoising need no training; not transport, as log",
        ),
        (FULL, FAR, "rejuvenate", "resampling in tempered steps"),
        (FULL, FROZEN, "rejuvenate", "one resampling step and denoising moves that are accepted by q/p"),
        (FULL, blind_far, "rejuvenate", "resampling in tempered steps and denoising moves that are accepted by q/p"),
        (
            FULL,
            BOX,
            "rejuvenate",
            "not transport, as most of the posterior lies outside the bounds of the target prior",
        ),
    ],
    ids=["gaussian", "mixture", "coarse", "wider", "shift", "laplace", "far", "frozen", "blind and far", "box"],
)
def test_method_and_reason(posterior, target, method, reason):
    name, why = chosen(posterior, target)
    assert name == method
    assert reason in why


@pytest.mark.parametrize("target", [NARROW, LAPLACE, FROZEN], ids=["gaussian", "laplace", "frozen"])
def test_the_ess_it_states_is_the_one_it_measured(target):
    problem = problem_of(FULL, target)
    ess, why = typical_ess(problem), Auto.build(problem).why
    found = re.search(r"is about ([0-9.e+-]+)", why)
    assert found is not None
    assert float(found[1]) == pytest.approx(ess, rel=0.06)  # two digits
    assert 0 < ess <= 1


def test_observation_without_any_weight_counts_as_zero_ess():
    tiny = problem_of(FULL, Uniform(torch.full((2,), 3.9), torch.full((2,), 3.91)))
    assert typical_ess(tiny) == 0.0


def test_without_simulations():
    bare = replace(FULL, simulations=None)
    assert chosen(bare, NARROW) == (
        "transport",
        "a Gaussian change that this base expresses exactly, with no training (no stored simulations to measure the ESS on)",
    )
    assert chosen(bare, LAPLACE)[0] == "rejuvenate"
    method, why = chosen(bare, FROZEN)
    assert method == "rejuvenate"
    assert "no stored simulations" in why


@pytest.mark.parametrize("target", [NARROW, WIDE], ids=["transport", "rejuvenate"])
def test_adapt_does_what_was_chosen_and_says_it(target):
    adapted = reprior.adapt(FULL, target)
    assert (adapted.method.name, adapted.why) == chosen(FULL, target)
    x = torch.tensor([0.4, 0.2])
    theta, info = adapted.sample((2_000,), x, seed=0, return_info=True)
    assert f"method        {adapted.method.name}: {adapted.why}" in str(info)
    exact = exact_posterior(target, x, 0.3)
    assert float(((theta.mean(0) - exact.mean) / exact.stddev).abs().max()) < 0.12


# --- settings by method ----------------------------------------------------------------------------------------------


def test_settings_of_a_method():
    nre, rejuvenate = find("nre"), find("rejuvenate")
    assert nre.checked("paper") is PAPER
    assert nre.checked() is nre.checked("best")
    assert nre.checked().weights == "posterior"
    assert rejuvenate.checked() == RejuvenateSettings()
    with pytest.raises(InputError, match="unknown to method 'nre'; allowed: 'best', 'paper', a RatioSettings"):
        nre.checked("fast")
    with pytest.raises(InputError, match="settings 'paper' are unknown to method 'rejuvenate'; allowed: a Rejuvenate"):
        rejuvenate.checked("paper")
    with pytest.raises(InputError, match="method 'nre' takes RatioSettings; got RejuvenateSettings"):
        nre.checked(RejuvenateSettings())
    with pytest.raises(InputError, match="method 'sir' takes SIRSettings; got dict"):
        find("sir").checked({"pool": 5})
    for method in ("auto", "plug_in", "none"):
        for settings in ({"pool": 5}, "paper"):
            with pytest.raises(InputError, match=f"method '{method}' takes no settings"):
                find(method).checked(settings)


def test_a_method_made_by_hand_has_its_defaults():
    problem = problem_of(FULL, NARROW)
    assert find("sir")(problem).settings == find("sir").checked()
    assert find("sir").build(problem).settings == find("sir").checked()
    with pytest.raises(InputError, match="method 'sir' takes SIRSettings; got RejuvenateSettings"):
        find("sir")(problem, RejuvenateSettings())


def test_auto_refuses_settings_instead_of_dropping_them():
    with pytest.raises(InputError, match="method 'auto' takes no settings; got RejuvenateSettings"):
        reprior.adapt(FULL, NARROW, settings=RejuvenateSettings())


def test_unknown_method_lists_them_all():
    with pytest.raises(InputError, match="method 'magic' is unknown; registered: " + ", ".join(registered())):
        reprior.adapt(FULL, NARROW, "magic")
