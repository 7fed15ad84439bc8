"""Which jobs a plan has, in which order, and what preset paper makes of them."""

from __future__ import annotations

import pytest

from reprior.errors import InputError
from reprior.methods import SIRSettings
from reprior_bench.bases import BaseSpec
from reprior_bench.plan import plan
from reprior_bench.posterior import PosteriorJob
from reprior_bench.predictive import PredictiveJob
from reprior_bench.presets import settings_of
from reprior_bench.tasks import BENCHMARK


def test_the_whole_of_the_paper():
    jobs = plan("paper")
    assert len({job.label for job in jobs}) == len(jobs)  # posterior and predictive jobs have the same names
    posterior = [job for job in jobs if isinstance(job, PosteriorJob)]
    predictive = [job for job in jobs if isinstance(job, PredictiveJob)]
    # Six methods on five tasks in two regimes, analytic on Gaussian Linear; three runs.
    assert len(posterior) == 3 * (6 * 10 + 2)
    assert {job.method for job in posterior if job.task == "oup"} == {
        "base",
        "priorguide",
        "wsm",
        "nre",
        "kliep",
        "sir",
    }
    assert {job.base.network for job in posterior if job.base} == {"simformer"}
    assert {(job.observations, job.samples, job.seed) for job in posterior} == {(10, 5_000, 50_000)}
    assert {job.task for job in predictive} == {"oup", "turin"}
    assert len(predictive) == 3 * (6 + 1) * 4  # and the exact predictive


def test_runs_come_outermost():
    runs = [job.run for job in plan()]
    assert runs == sorted(runs)
    assert set(runs) == {0, 1, 2}


def test_best_has_every_method_that_is_no_part_of_another():
    methods = {job.method for job in plan(tasks=("gaussian_linear",))}
    assert methods == {
        *("base", "auto", "transport", "rejuvenate", "nre", "kliep", "pearson", "reverse_kl", "hellinger"),
        *("wsm", "priorguide", "sir", "analytic"),
    }


def test_the_quick_preset_has_all_ten_in_one_observation_and_one_run():
    jobs = plan("quick")
    assert len({(job.task, job.regime) for job in jobs}) == 10
    assert {(job.observations, job.run, job.samples) for job in jobs} == {(1, 0, 500)}
    few = plan("quick", tasks=("oup",), methods=("nre",))
    assert {(job.part, job.method) for job in few} == {
        ("posterior", "nre"),
        ("predictive", "nre"),
        ("predictive", "exact"),
    }


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"preset": "good"}, "preset 'good' is unknown; allowed: paper, best, quick"),
        ({"tasks": ("moons",)}, "task 'moons' is unknown"),
        ({"tasks": ("turin_physical",)}, "task 'turin_physical' is unknown"),  # it has no reference
        ({"regimes": ("far",)}, "regime 'far' is unknown; allowed: id, ood"),
        ({"parts": ("prior",)}, "part 'prior' is unknown"),
        ({"runs": 0}, "runs must be at least 1; got 0"),
        ({"seed": -1}, "seed >= 0"),
        ({"methods": ("magic",)}, "method 'magic' is unknown"),
        ({"methods": ("nre", "nre")}, "method is named twice: nre, nre"),
        ({"tasks": ("oup", "oup")}, "task is named twice"),
        ({"tasks": ("two_moons",), "parts": ("predictive",)}, "nothing to run for task two_moons, .*part predictive"),
        ({"tasks": ("slcp",), "methods": ("analytic",)}, "nothing to run for task slcp, method analytic"),
    ],
)
def test_what_is_unknown_is_named(wrong, told):
    with pytest.raises(InputError, match=told):
        plan(**wrong)


def test_the_exact_predictive_is_there_once_asked_for_or_not():
    for asked in (("base",), ("base", "exact")):
        jobs = plan(tasks=("oup",), regimes=("id",), methods=asked, parts=("predictive",), runs=1)
        assert [job.method for job in jobs] == ["base", "exact"]


def test_preset_paper_resamples_with_replacement_and_groups_series():
    assert settings_of("nre", "paper", 700).network.precision == "bfloat16"
    assert settings_of("wsm", "paper", 700).training.steps == 10_000
    assert settings_of("nre", "best", 700) is None  # the method's own
    assert settings_of("sir", "paper", 700) == SIRSettings(pool=700, resampling="multinomial")
    patches = {t: BaseSpec(t, "id", "simformer", "paper").recipe().network.patch for t in BENCHMARK}
    assert patches == {"two_moons": 1, "slcp": 1, "gaussian_linear": 1, "oup": 5, "turin": 20}
