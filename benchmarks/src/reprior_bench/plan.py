"""Which jobs a run has, and in which order.

Runs come outermost, so that a run that is stopped early has every method once before any has it twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from reprior.errors import InputError
from reprior_bench import EVALUATION_SEED
from reprior_bench.posterior import MethodJob, PosteriorJob
from reprior_bench.predictive import PredictiveJob
from reprior_bench.presets import EXACT, methods_of, preset_of
from reprior_bench.tasks import BENCHMARK, REGIMES, SERIES

__all__ = ["PARTS", "plan"]

PARTS = ("posterior", "predictive")


def plan(
    preset: str = "best",
    tasks: Sequence[str] = BENCHMARK,
    regimes: Sequence[str] = REGIMES,
    methods: Sequence[str] = (),
    parts: Sequence[str] = PARTS,
    observations: int | None = None,
    runs: int | None = None,
    samples: int | None = None,
    seed: int = EVALUATION_SEED,
    forest: bool = True,
) -> list[MethodJob]:
    """The jobs, in the order in which they are run.

    Arguments:
        preset: "best", "paper" or "quick".
        tasks: the tasks.
        regimes: "id", "ood".
        methods: the methods; all of the preset's if empty.
        parts: "posterior", and "predictive" for tasks whose data are a series.
        observations: observations per job; the preset's if None.
        runs: runs per method; the preset's if None.
        samples: samples per observation; the preset's if None.
        seed: seeds the observations.
        forest: whether the random-forest C2ST is measured.
    """
    chosen = preset_of(preset)
    for name, values, allowed in (
        ("task", tasks, BENCHMARK),
        ("regime", regimes, REGIMES),
        ("part", parts, PARTS),
        ("method", methods, methods),
    ):
        for value in values:
            if value not in allowed:
                raise InputError(f"{name} {value!r} is unknown; allowed: {', '.join(allowed)}")
        if len(set(values)) < len(values):
            raise InputError(f"{name} is named twice: {', '.join(values)}")
    runs = chosen.runs if runs is None else runs
    if runs < 1:
        raise InputError(f"runs must be at least 1; got {runs}")
    counts = (
        chosen.observations if observations is None else observations,
        chosen.samples if samples is None else samples,
        seed,
    )
    jobs: list[MethodJob] = []
    for run in range(runs):
        for task in tasks:
            asked = methods_of(preset, task, tuple(methods))
            for regime in regimes:
                if "posterior" in parts:
                    jobs += [
                        PosteriorJob(task, regime, m, preset, run, *counts, forest=forest) for m in asked if m != EXACT
                    ]
                if "predictive" in parts and task in SERIES:  # with the exact predictive, asked for or not
                    jobs += [
                        PredictiveJob(task, regime, m, preset, run, *counts) for m in dict.fromkeys([*asked, EXACT])
                    ]
    if not jobs:
        asked_for = f"{', '.join(tasks)}, method {', '.join(methods) or 'any'}, part {', '.join(parts)}"
        raise InputError(
            f"there is nothing to run for task {asked_for}: predictions are for {', '.join(SERIES)}, and `analytic` is for "
            "gaussian_linear"
        )
    return jobs
