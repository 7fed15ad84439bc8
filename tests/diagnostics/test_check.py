"""One check: how a figure is judged, and how a check of another package is registered."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from exact import gaussian_posterior
from torch.distributions import MultivariateNormal

import reprior
from reprior.diagnostics import CHECKS, DiagnoseSettings, diagnose
from reprior.diagnostics.calibration import Pairs
from reprior.diagnostics.change import ESS, Reweighted
from reprior.diagnostics.check import Check, Figure, judge, register_check
from reprior.errors import InputError


class Width(Check):
    """The standard deviation of the first parameter."""

    name = "width"
    title = "Width"
    meaning = "Standard deviation of the first parameter."
    group = "Mine"
    bad = "high"
    caution = 0.1
    stop = 0.2

    def look(self, case):
        return self.at_worst(case, lambda scene: Figure(float(scene.adapted[:, 0].std()), "Of the first."))


@pytest.fixture
def registry() -> Iterator[list[Check]]:
    """The registry, put back after the test."""
    before = list(CHECKS)
    yield CHECKS
    CHECKS[:] = before


def changed(**attributes: Any) -> type[Check]:
    """The check above under another name, with other attributes."""
    return type("Changed", (Width,), {"name": "changed", **attributes})


def test_outcomes_follow_the_thresholds():
    lines = {"reweighted": (0.6, 0.7), "ess": (0.1, 0.01)}
    assert [judge(Reweighted(), Figure(v), lines).outcome for v in (0.6, 0.65, 0.71)] == ["pass", "caution", "stop"]
    assert [judge(ESS(), Figure(v), lines).outcome for v in (0.1, 0.05, 0.001)] == ["pass", "caution", "stop"]
    assert judge(ESS(), Figure(0.05)).outcome == "pass"  # by its own
    assert "0.65, above 0.6" in judge(Reweighted(), Figure(0.65), lines).reason
    assert "0.71, above 0.7. So." in judge(Reweighted(), Figure(0.71, "So."), lines).reason


def test_a_check_has_no_worse_outcome_than_it_may_have():
    assert judge(Pairs(), Figure(10.0), {"pairs": (30.0, 20.0)}).outcome == "caution"
    assert judge(Pairs(), Figure(10.0)).threshold == "caution < 30"
    shown = judge(changed(worst="info")(), Figure(9.0))
    assert (shown.outcome, shown.threshold) == ("info", "not judged")


def test_no_figure_is_skipped_unless_it_is_a_bad_sign():
    skipped = judge(ESS(), Figure(math.nan, "nothing to weigh"))
    assert (skipped.outcome, skipped.note) == ("skipped", "nothing to weigh")
    failed = judge(ESS(), Figure(math.nan, "it broke.", outcome="stop"))
    assert failed.outcome == "stop"
    assert failed.reason.endswith("no figure. It broke.")
    assert json.loads(json.dumps(failed.to_dict(), allow_nan=False))["value"] is None


def test_a_check_of_another_package_is_in_every_report(registry, tmp_path):
    register_check(Width)
    posterior, _ = gaussian_posterior(dim=2)
    adapted = reprior.adapt(posterior, MultivariateNormal(torch.zeros(2), 0.5 * torch.eye(2)), "none")
    light = {"draws": 300, "pool": 500, "pairs": 0}
    report = diagnose(adapted, torch.zeros(2), settings=DiagnoseSettings(**light))
    # The base is N(0, .3 / 1.3): its standard deviation is .48.
    assert report["width"].value == pytest.approx(0.48, abs=0.08)  # 300 draws: standard error .02; four of them
    assert report["width"].outcome == "stop"
    assert "Width: 0.4" in str(report.reasons)
    page = report.to_html(tmp_path / "more.html").read_text(encoding="utf-8")
    assert ">Mine<" in page
    assert "Standard deviation of the first parameter." in page
    softer = diagnose(adapted, torch.zeros(2), settings=DiagnoseSettings(**light, thresholds={"width": (0.9, 1.0)}))
    assert softer["width"].outcome == "pass"


def test_a_check_is_registered_once(registry):
    register_check(Width)
    count = len(registry)
    register_check(Width)  # its module may be reloaded
    assert len(registry) == count
    with pytest.raises(InputError, match="'width' is registered already: Width"):
        register_check(changed(name="width"))


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"bad": "odd"}, "bad must be 'high' or 'low'"),
        ({"worst": "odd"}, "worst 'stop', 'caution' or 'info'"),
        ({"caution": 3.0}, "'changed' is bad when high, so caution must come before stop"),
    ],
)
def test_a_check_that_makes_no_sense_is_refused(registry, attributes, said):
    with pytest.raises(InputError, match=said):
        register_check(changed(**attributes))


def test_a_check_must_be_whole(registry):
    class Half(Check):
        name = "half"
        title = "Half"

        def look(self, case):
            return Figure(1.0)

    with pytest.raises(InputError, match="check Half has no meaning, group, bad, caution, stop"):
        register_check(Half)
    with pytest.raises(InputError, match="takes a subclass"):
        register_check("half")  # pyright: ignore[reportArgumentType]
