"""Every method on a Simformer base, for theta | x and for the posterior predictive, against a linear-Gaussian series.

theta ~ N(m, P), x_j = a_j' theta + noise. The base is a Simformer whose network is still zero: what is left is its
Gaussian guess, fitted to the simulations, which is this model's exact answer up to the error of that fit. So the methods
are tested, and not how long a network was trained (that is in networks/test_simformer.py).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

import reprior
from reprior.errors import InputError
from reprior.methods import RejuvenateSettings, SIRSettings
from reprior.methods.learned import BEST
from reprior.networks.fit import Training
from reprior.networks.simformer import SimformerSettings
from reprior.posterior import Posterior

M, NOISE_SD, N, DRAWS = 6, 0.7, 20_000, 1_000
STEP = torch.arange(M)
LIFT = torch.stack([(0.9 * STEP).cos(), (0.9 * STEP).sin()], -1)
PRIOR = MultivariateNormal(torch.tensor([1.0, -1.0]), torch.diag(torch.tensor([1.0, 1.5])))
TARGET = MultivariateNormal(torch.tensor([2.2, -2.0]), torch.diag(torch.tensor([0.2, 0.4])))
OBSERVED = torch.tensor([True, True, False, True, False, False])
X = torch.tensor([1.9, -0.6, -1.4, -1.9, 0.3, 1.1])
GAPS = torch.where(OBSERVED, X, torch.nan)

QUICK = replace(
    BEST, observations=200, draws=32, training=replace(BEST.training, steps=200, batch=512, evaluate_every=50)
)
SETTINGS: dict[str, Any] = {
    "rejuvenate": RejuvenateSettings(pool=2_000),
    "sir": SIRSettings(pool=4_000),
}
LEARNED = ("nre", "kliep")  # the other estimators differ from these in the loss alone
FREE = ("transport", "rejuvenate", "plug_in", "sir", "auto")


@pytest.fixture(scope="module")
def posterior() -> Posterior:
    generator = torch.Generator().manual_seed(0)
    theta = PRIOR.mean + torch.randn(N, 2, generator=generator) @ PRIOR.scale_tril.T
    x = theta @ LIFT.T + NOISE_SD * torch.randn(N, M, generator=generator)
    none = Training(steps=1, evaluate_every=1, batch=2, learning_rate=1e-9, schedule="constant")
    settings = SimformerSettings(width=8, layers=1, patch=2)
    return reprior.train(theta, x, PRIOR, network="simformer", settings=settings, training=none, progress=False)


def adapt(posterior: Posterior, method: str, observed: Tensor | None) -> reprior.AdaptedPosterior:
    settings = QUICK if method in LEARNED else SETTINGS.get(method)
    return reprior.adapt(posterior, TARGET, method, settings, seed=0, observed=observed)


def exact(prior: MultivariateNormal, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of (theta, x not seen) given X where seen."""
    precision = torch.linalg.inv(prior.covariance_matrix)
    lift = LIFT[seen]
    cov = torch.linalg.inv(precision + lift.T @ lift / NOISE_SD**2)
    mean = cov @ (precision @ prior.mean + lift.T @ X[seen] / NOISE_SD**2)
    both = torch.cat([torch.eye(2), LIFT[~seen]])
    total = both @ cov @ both.T
    total[2:, 2:] += NOISE_SD**2 * torch.eye(int((~seen).sum()))
    return both @ mean, total


def check(draws: Tensor, mean: Tensor, cov: Tensor, margin: float) -> None:
    """Compares moments in units of the exact standard deviations."""
    sd = cov.diagonal().sqrt()
    assert ((draws.mean(0) - mean) / sd).abs().max() < margin
    assert (draws.std(0) / sd - 1).abs().max() < margin
    assert (torch.corrcoef(draws.T) - cov / sd / sd[:, None]).abs().max() < margin


# 1,000 draws: 0.032 sd for a mean, 2.2 % for an sd, 0.032 for a correlation, times 3 for the largest of many; the
# sampler costs up to 4 % in sd, and the guess is fitted on 20,000 rows. Learned guidance of 200 steps is
# less exact. `test_no_change_is_the_base` says how far off no change at all is.
MARGIN, LEARNED_MARGIN = 0.15, 0.3


@pytest.mark.parametrize("method", FREE)
def test_predictive_without_training(posterior, method):
    adapted = adapt(posterior, method, None)
    theta, full, info = adapted.predict((DRAWS,), GAPS, seed=1, return_info=True)
    assert torch.equal(full[:, OBSERVED], GAPS[OBSERVED].expand(DRAWS, -1))
    check(torch.cat([theta, full[:, ~OBSERVED]], 1), *exact(TARGET, OBSERVED), MARGIN)
    assert info.relative_ess[0] > 0.1


def test_predictive_of_a_learned_method(posterior):
    adapted = adapt(posterior, "nre", OBSERVED)
    theta, full = adapted.predict((DRAWS,), GAPS, seed=1)
    check(torch.cat([theta, full[:, ~OBSERVED]], 1), *exact(TARGET, OBSERVED), LEARNED_MARGIN)
    with pytest.raises(InputError, match="3 of 6 entries of x, and something else is asked"):
        adapted.predict((5,), X.where(~OBSERVED, torch.tensor(torch.nan)))  # as many, but others
    with pytest.raises(InputError, match="something else is asked"):
        adapted.sample((5,), X)


def test_no_change_is_the_base(posterior):
    theta, full = adapt(posterior, "none", None).predict((DRAWS,), GAPS, seed=1)
    check(torch.cat([theta, full[:, ~OBSERVED]], 1), *exact(PRIOR, OBSERVED), MARGIN)
    mean, cov = exact(TARGET, OBSERVED)
    off = (exact(PRIOR, OBSERVED)[0] - mean) / cov.diagonal().sqrt()
    assert off.abs().max() > 1.5 * LEARNED_MARGIN


@pytest.mark.parametrize("method", ["transport", "rejuvenate"])
def test_the_same_seed_gives_the_same_predictions(posterior, method, capfd):
    adapted = adapt(posterior, method, None)
    one, two, other = (adapted.predict((20,), GAPS, seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not torch.equal(one[1], other[1])
    capfd.readouterr()
    shown = adapted.predict((20,), GAPS, seed=3, progress=True)
    out, err = capfd.readouterr()
    assert all(torch.equal(a, b) for a, b in zip(one, shown, strict=True))
    assert out == ""
    assert f"sample by {method}: " in err


def test_a_mask_of_another_length_is_refused(posterior):
    with pytest.raises(InputError, match=r"observed needs shape \(6,\), an entry for each of x; got \(3,\)"):
        adapt(posterior, "nre", OBSERVED[:3])


@pytest.mark.parametrize("method", FREE)
def test_parameters_without_training(posterior, method):
    # Two observations together, the second with missing entries: theta alone is drawn from what is there.
    theta = adapt(posterior, method, None).sample_batched((DRAWS,), torch.stack([X, GAPS]), seed=1)
    for k, seen in enumerate((torch.ones(M, dtype=torch.bool), OBSERVED)):
        mean, cov = exact(TARGET, seen)
        check(theta[:, k], mean[:2], cov[:2, :2], MARGIN)


def test_parameters_of_a_learned_method(posterior):
    adapted = adapt(posterior, "kliep", None)
    check(adapted.sample((DRAWS,), X, seed=1), *exact(TARGET, torch.ones(M, dtype=torch.bool)), LEARNED_MARGIN)
    with pytest.raises(InputError, match="from all of x, and something else is asked"):
        adapted.predict((5,), GAPS)


def test_auto_looks_at_what_is_observed(posterior):
    # Given half of x theta is known less well, so q/p varies more over its posterior.
    adapted = [adapt(posterior, "auto", observed) for observed in (None, OBSERVED)]
    stated = [re.search(r"is about ([0-9.]+)", one.why) for one in adapted]
    whole, half = (float(found[1]) for found in stated if found is not None)
    assert half < whole - 0.05


def test_a_learned_method_over_simulations_with_gaps(posterior):
    """The network is told what is missing in training; at a complete x nothing is."""
    assert posterior.simulations is not None
    x = posterior.simulations.x.clone()
    x[::2, 4] = torch.nan
    gappy = replace(posterior, simulations=replace(posterior.simulations, x=x))
    theta = adapt(gappy, "nre", None).sample((DRAWS,), X, seed=1)
    mean, cov = exact(TARGET, torch.ones(M, dtype=torch.bool))
    check(theta, mean[:2], cov[:2, :2], LEARNED_MARGIN)


@pytest.mark.parametrize("method", ["auto", "nre", "joint"])
def test_predictions_over_simulations_that_lack_what_is_observed(posterior, method):
    assert posterior.simulations is not None
    x = posterior.simulations.x.clone()
    x[::5, 1], x[1::5, 2] = torch.nan, torch.nan  # one entry that is observed, and one that is predicted
    gappy = posterior.with_simulations(posterior.simulations.theta, x)
    few = replace(QUICK, training=replace(QUICK.training, steps=4, evaluate_every=4))
    if method == "joint":
        few = replace(few, weights="joint", plug_in="off", on="base", observations=20)
    settings = None if method == "auto" else few
    adapted = reprior.adapt(gappy, TARGET, method.replace("joint", "nre"), settings, observed=OBSERVED)
    assert torch.isfinite(adapted.predict((50,), GAPS, seed=0)[1]).all()
    nothing = gappy.with_simulations(posterior.simulations.theta, torch.where(OBSERVED, torch.nan, x))
    with pytest.raises(InputError, match=r"0 of .* stored simulations have all entries of x that are needed here"):
        reprior.adapt(nothing, TARGET, method.replace("joint", "nre"), settings, observed=OBSERVED)


def test_auto_predicts_on_a_base_of_scalar_noise_that_needs_all_of_x(posterior):
    """One level of noise cannot tell theta, which the change narrows, from the predicted x, which it leaves."""
    assert posterior.simulations is not None
    narrow = MultivariateNormal(PRIOR.mean, 0.5 * PRIOR.covariance_matrix)
    none = Training(steps=1, evaluate_every=1, batch=2, learning_rate=1e-9, schedule="constant")
    settings = SimformerSettings(width=8, layers=1, patch=2, noise="scalar", absent=0.0)
    kept = posterior.simulations
    scalar = reprior.train(
        kept.theta, kept.x, PRIOR, network="simformer", settings=settings, training=none, progress=False
    )
    adapted = reprior.adapt(scalar, narrow, "auto", seed=0, observed=OBSERVED)
    assert "needs a base trained with noise='diagonal'" in adapted.why
    theta, full = adapted.predict((DRAWS,), GAPS, seed=1)
    check(torch.cat([theta, full[:, ~OBSERVED]], 1), *exact(narrow, OBSERVED), MARGIN)
    # A multiple of I in standardised units, which theta alone is transported by; and a pure shift, which moves no noise.
    unit = scalar.scales.theta
    evenly = MultivariateNormal(PRIOR.mean, torch.diag(1 / (1 / PRIOR.variance + 1 / unit.scale**2)))
    shift = MultivariateNormal(PRIOR.mean + 0.3, PRIOR.covariance_matrix)
    for target, refused in ((evenly, True), (shift, False)):
        alone = reprior.adapt(scalar, target, "transport")
        if refused:
            with pytest.raises(InputError, match="needs a base trained with noise='diagonal'"):
                alone.predict((DRAWS,), GAPS, seed=1)
        else:
            theta, full = alone.predict((DRAWS,), GAPS, seed=1)
            check(torch.cat([theta, full[:, ~OBSERVED]], 1), *exact(target, OBSERVED), MARGIN)
        theta, full, info = reprior.adapt(scalar, target, "rejuvenate").predict(
            (DRAWS,), GAPS, seed=1, return_info=True
        )
        assert info.told[0].endswith("by plug_in" if refused else "by transport")
        check(torch.cat([theta, full[:, ~OBSERVED]], 1), *exact(target, OBSERVED), MARGIN)
