from __future__ import annotations

import pytest
import torch

from reprior import priors
from reprior.errors import InputError
from reprior_transits.known_period import redraw_period, with_period
from reprior_transits.transit_prior import TransitPrior, impact_parameter


def test_without_data_a_known_period_leaves_the_prior_of_the_others():
    # a and inc do not depend on P under the prior. Standard errors with ESS = 0.8 x 20,000: sd / 126.
    prior = priors.sample(TransitPrior(), 20_000, seed=0)
    known, ess = with_period(prior, 4.0, seed=1)
    assert 0.6 < ess < 1
    assert (known[:, 3] == 4.0).all()
    for i in (0, 1, 2):
        margin = 4 * float(prior[:, i].std()) / 126 * 2**0.5
        assert float(known[:, i].mean()) == pytest.approx(float(prior[:, i].mean()), abs=margin)
        assert float(known[:, i].std()) == pytest.approx(float(prior[:, i].std()), rel=0.04)


def test_speed_and_impact_parameter_are_kept():
    # A posterior that knows v = a/P and b, and nothing of P: with P known, a is known too.
    generator = torch.Generator().manual_seed(2)
    theta = priors.sample(TransitPrior(), 4_000, seed=3)
    period = 3.4 + 0.6 * torch.randn(4_000, generator=generator).clamp(-3, 3)
    theta[:, 3], theta[:, 1] = period, 3.0 * period
    theta[:, 2] = 180 - torch.rad2deg(torch.arccos(0.4 / theta[:, 1]))  # the mirror image, above 90 degrees
    known, _ = with_period(theta, 4.0)
    assert known[:, 1] == pytest.approx(12.0, abs=1e-4)
    assert impact_parameter(known) == pytest.approx(0.4, abs=1e-3)
    assert (known[:, 2] < 90).all()


def test_redrawing_the_period_leaves_the_prior_and_what_a_light_curve_sees():
    prior = priors.sample(TransitPrior(), 20_000, seed=4)
    found = redraw_period(prior, torch.Generator().manual_seed(5))
    assert found[:, 1] / found[:, 3] == pytest.approx(prior[:, 1] / prior[:, 3], rel=1e-4)
    assert impact_parameter(found) == pytest.approx(impact_parameter(prior), abs=2e-3)
    for i in (1, 2, 3):  # two sets of 20,000: 4 standard errors, and 4 % in width
        margin = 4 * float(prior[:, i].std()) * (2 / 20_000) ** 0.5
        assert float(found[:, i].mean()) == pytest.approx(float(prior[:, i].mean()), abs=margin)
        assert float(found[:, i].std()) == pytest.approx(float(prior[:, i].std()), rel=0.04)
    assert float(torch.corrcoef(torch.stack([found[:, 3], prior[:, 3]]))[0, 1]) < 0.8


def test_a_sample_that_is_no_orbit_has_no_weight():
    theta = priors.sample(TransitPrior(), 500, seed=6)
    theta[:10, 1] = -1.0
    known, _ = with_period(theta, 4.0)
    assert (known[:, 1] > 1).all()
    with pytest.raises(InputError, match=r"no sample has an orbit with a period of 4\.0 d"):
        with_period(theta[:10], 4.0)


def test_bad_input_is_named():
    with pytest.raises(InputError, match="period must be > 0 days; got -1"):
        with_period(torch.zeros(3, 8), -1)
    with pytest.raises(InputError, match=r"shape \(n, 8\); got \(3, 7\)"):
        with_period(torch.zeros(3, 7), 3.0)
