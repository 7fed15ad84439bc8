from __future__ import annotations

import csv

import numpy as np
import pytest
import torch

from reprior.io import write_rows
from reprior_transits.tables import (
    INTEREST,
    agreement,
    error_rows,
    final_rows,
    normalised_rmse,
    step_rows,
    summary,
)
from reprior_transits.targets import Reference
from reprior_transits.transit_prior import MEAN, STD

PUBLISHED = Reference(k=0.1, a=10.0, inc=87.5, period=3.6, source="made up")
FIT = Reference(k=0.1, a=10.0, inc=87.5, period=3.6, source="made up", k_error=0.03, a_error=4.0)


def gaussian(n=20_000, shift=0.0, width=1.0, seed=0):
    noise = torch.randn(n, 8, generator=torch.Generator().manual_seed(seed))
    return torch.tensor(MEAN) + torch.tensor(STD) * (shift + width * noise)


def test_summary_gives_median_and_quantiles_with_folded_inclinations():
    theta = gaussian(width=0.1)
    found = summary(theta)
    assert found["k"][0] == pytest.approx(0.1, abs=4 * 0.004 * 1.25 / 20_000**0.5)
    assert found["a"][1] == pytest.approx(0.3, rel=0.03)
    assert found["P"][3] - found["P"][2] == pytest.approx(0.16, rel=0.04)
    theta[:, 2] = 91.0
    assert summary(theta)["inc"][0] == pytest.approx(89.0)


def test_normalised_rmse_is_bias_and_width_in_prior_standard_deviations():
    # sqrt(0.5^2 + 0.2^2) for each of the four; the inclination stays below 90 with this shift.
    theta = gaussian(shift=-0.5, width=0.2)
    assert normalised_rmse(theta, PUBLISHED) == pytest.approx((0.25 + 0.04) ** 0.5, rel=0.01)


def test_rows_hold_every_run_window_and_parameter(tmp_path):
    runs = {"accumulate": [gaussian(500), gaussian(500, width=0.5)], "shuffled": [gaussian(500)] * 2}
    rows = step_rows(runs, np.array([10.0, 13.6]))
    assert len(rows) == 2 * 2 * len(INTEREST)
    assert rows[4]["mid_time"] == "13.6000"
    assert {row["mid_time"] for row in rows if row["run"] == "shuffled"} == {""}
    errors = error_rows(runs, PUBLISHED, FIT)
    assert [row["n"] for row in errors] == [1, 2, 1, 2]
    assert errors[1]["rmse_published"] < errors[0]["rmse_published"]
    path = write_rows(rows, tmp_path / "deep" / "steps.csv")
    with path.open() as lines:
        assert [row["parameter"] for row in csv.DictReader(lines)][:4] == list(INTEREST)


def test_the_distance_to_the_fit_is_in_combined_standard_deviations():
    rows = {row["parameter"]: row for row in final_rows({"all": gaussian(shift=-1.0)}, PUBLISHED, FIT)}
    # k: -0.04 / sqrt(0.04^2 + 0.03^2) = -0.8; a: -3 / 5 = -0.6; sampling error of a median of 20,000: 0.01 sd.
    assert float(rows["k"]["z"]) == pytest.approx(-0.8, abs=0.04)
    assert float(rows["a"]["z"]) == pytest.approx(-0.6, abs=0.04)
    assert rows["P"]["z"] == ""  # the fit quotes no error


def test_agreement_is_half_for_equal_posteriors_and_tells_a_shift_in_standard_deviations():
    # Inclinations stay below 90 degrees. 2,000 of each: the accuracy is known to .008, a median to .03 sd.
    one, same = gaussian(2_000, shift=-1.0, width=0.1), gaussian(3_000, shift=-1.0, width=0.1, seed=1)
    assert agreement(one, same)["c2st"] == pytest.approx(0.5, abs=0.04)
    shifted = agreement(one, gaussian(2_000, shift=-0.9, width=0.1, seed=2))
    assert shifted["shift_k"] == pytest.approx(1.0, abs=0.16)
    assert shifted["c2st"] > 0.7
