"""Which cells a plan has, in which order, and what preset paper makes of them."""

from __future__ import annotations

import pytest

from reprior_bench.bases import BaseSpec
from reprior_bench.cells import Cell
from reprior_bench.grid import Plan
from reprior_bench.predictive import PredictCell
from reprior_bench.presets import TASKS, method_settings
from reprior.errors import InputError
from reprior.methods.sir import SIRSettings


def test_the_whole_grid_of_the_paper():
    cells = Plan("paper").cells()
    assert len({c.name for c in cells}) == len(cells)
    posterior = [c for c in cells if isinstance(c, Cell)]
    predictive = [c for c in cells if isinstance(c, PredictCell)]
    # Six methods on five tasks in two regimes, analytic on Gaussian Linear; three runs.
    assert len(posterior) == 3 * (6 * 10 + 2)
    assert {c.method for c in posterior if c.task == "oup"} == {"base", "priorguide", "wsm", "nre", "kliep", "sir"}
    assert {c.network for c in posterior} == {"simformer"}
    assert {(c.observations, c.samples, c.seed) for c in posterior} == {(10, 5_000, 20_000)}
    assert {c.task for c in predictive} == {"oup", "turin"}
    assert len(predictive) == 3 * (6 + 1) * 4  # and the exact predictive


def test_runs_come_outermost():
    runs = [c.run for c in Plan().cells()]
    assert runs == sorted(runs)
    assert set(runs) == {0, 1, 2}


def test_best_has_every_method_of_the_library_that_is_no_part_of_another():
    methods = {c.method for c in Plan(tasks=("gaussian_linear",)).cells()}
    assert methods == {
        *("base", "auto", "transport", "rejuvenate", "nre", "kliep", "pearson", "reverse_kl", "hellinger"),
        *("wsm", "priorguide", "sir", "analytic"),
    }


def test_the_quick_version_has_all_ten_in_one_observation_and_one_run():
    cells = Plan().quick().cells()
    assert len({(c.task, c.regime) for c in cells}) == 10
    assert {(c.observations, c.run, c.quick) for c in cells} == {(1, 0, True)}
    assert not {c.name for c in cells} & {c.name for c in Plan().cells()}  # never mistaken for a result


def test_the_quick_version_has_the_methods_that_are_asked_for():
    cells = Plan(tasks=("oup",), methods=("nre",)).quick().cells()
    assert {c.method for c in cells if isinstance(c, Cell)} == {"nre"}
    assert {c.method for c in cells if isinstance(c, PredictCell)} == {"nre", "exact"}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"preset": "good"}, "preset 'good' is unknown; allowed: paper, best"),
        ({"tasks": ("moons",)}, "task 'moons' is unknown"),
        ({"regimes": ("far",)}, "regime 'far' is unknown; allowed: id, ood"),
        ({"parts": ("prior",)}, "part 'prior' is unknown"),
        ({"runs": 0}, "runs must be at least 1; got 0"),
        ({"seed": -1}, "seed >= 0"),
        ({"methods": ("nre", "nre")}, "method is named twice: nre, nre"),
        ({"tasks": ("oup", "oup")}, "task is named twice"),
        ({"tasks": ("two_moons",), "parts": ("predictive",)}, "nothing to run for task two_moons, .*part predictive"),
        ({"tasks": ("slcp",), "methods": ("analytic",)}, "nothing to run for task slcp, method analytic"),
    ],
)
def test_what_is_unknown_is_named(wrong, told):
    with pytest.raises(InputError, match=told):
        Plan(**wrong)


def test_unknown_methods_are_named():
    with pytest.raises(InputError, match="method 'magic' is unknown"):
        Plan(methods=("magic",)).cells()


def test_the_exact_predictive_is_there_once_asked_for_or_not():
    for asked in (("base",), ("base", "exact")):
        cells = Plan(tasks=("oup",), regimes=("id",), methods=asked, parts=("predictive",), runs=1).cells()
        assert [c.method for c in cells] == ["base", "exact"]


def test_preset_paper_resamples_with_replacement_and_groups_series():
    assert method_settings("nre", "paper", 700, quick=False).network.precision == "bfloat16"
    assert method_settings("nre", "best", 700, quick=False).network.precision == "float32"
    assert method_settings("sir", "paper", 700, quick=False) == SIRSettings(pool=700, resampling="multinomial")
    assert method_settings("sir", "best", 700, quick=False) == SIRSettings()
    patches = {t: BaseSpec(t, "id", "simformer", "paper").settings()[0].patch for t in TASKS}
    assert patches == {"two_moons": 1, "slcp": 1, "gaussian_linear": 1, "oup": 5, "turin": 20}
