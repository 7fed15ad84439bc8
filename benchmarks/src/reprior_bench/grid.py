"""The grid of a run: which cells, in which order.

Runs come outermost, so that a grid that is stopped early has every method once before any has it twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from reprior_bench import EVALUATION_SEED
from reprior_bench.cells import Cell
from reprior_bench.predictive import EXACT, PredictCell
from reprior_bench.presets import PRESET_METHODS, QUICK_METHODS, QUICK_PREDICT, REGIMES, SERIES, TASKS, methods_of
from reprior.errors import InputError

__all__ = ["PARTS", "Plan"]

PARTS = ("posterior", "predictive")


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        preset: "best" or "paper".
        tasks: the tasks.
        regimes: "id", "ood".
        methods: the methods; all of the preset's if empty.
        parts: "posterior", and "predictive" for tasks whose data are a series.
        network: the base of the posterior part of preset best; preset paper and predictions stand on a Simformer.
        observations: observations per cell.
        runs: runs per cell.
        samples: samples per observation.
        seed: seeds the observations.
        slow: whether the random-forest C2ST is measured.
        smallest: whether every base and method is of the smallest version.
    """

    preset: str = "best"
    tasks: tuple[str, ...] = TASKS
    regimes: tuple[str, ...] = REGIMES
    methods: tuple[str, ...] = ()
    parts: tuple[str, ...] = PARTS
    network: str = "mlp"
    observations: int = 10
    runs: int = 3
    samples: int = 5_000
    seed: int = EVALUATION_SEED
    slow: bool = True
    smallest: bool = False

    def __post_init__(self) -> None:
        for name, values, allowed in (
            ("preset", (self.preset,), tuple(PRESET_METHODS)),
            ("task", self.tasks, TASKS),
            ("regime", self.regimes, REGIMES),
            ("part", self.parts, PARTS),
        ):
            for value in values:
                if value not in allowed:
                    raise InputError(f"{name} {value!r} is unknown; allowed: {', '.join(allowed)}")
            if len(set(values)) < len(values):
                raise InputError(f"{name} is named twice: {', '.join(values)}")
        if len(set(self.methods)) < len(self.methods):
            raise InputError(f"method is named twice: {', '.join(self.methods)}")
        if self.runs < 1:
            raise InputError(f"runs must be at least 1; got {self.runs}")
        if not self.cells():
            asked = f"{', '.join(self.tasks)}, method {', '.join(self.methods) or 'any'}, part {', '.join(self.parts)}"
            raise InputError(
                f"there is nothing to run for task {asked}: predictions are for {', '.join(SERIES)}, and `analytic` is for "
                "gaussian_linear"
            )

    def quick(self) -> Plan:
        """The smallest version of this plan: 1 observation, 1 run, 500 samples, few methods."""
        return replace(self, observations=1, runs=1, samples=500, smallest=True)

    def cells(self) -> list[Cell | PredictCell]:
        """The cells, in the order in which they are run."""
        return [
            cell for run in range(self.runs) for t in self.tasks for r in self.regimes for cell in self._of(t, r, run)
        ]

    def _of(self, task: str, regime: str, run: int) -> list[Cell | PredictCell]:
        methods = methods_of(self.preset, task, self.methods or (QUICK_METHODS if self.smallest else ()))
        shared = {"observations": self.observations, "samples": self.samples, "seed": self.seed, "quick": self.smallest}
        cells: list[Cell | PredictCell] = []
        if "posterior" in self.parts:
            network = "simformer" if self.preset == "paper" else self.network
            cells += [Cell(task, regime, m, self.preset, network, run, slow=self.slow, **shared) for m in methods]
        if "predictive" in self.parts and task in SERIES:
            some = QUICK_PREDICT if self.smallest and not self.methods else methods
            predicted = dict.fromkeys([*some, EXACT])  # asked for or not, once
            cells += [PredictCell(task, regime, m, self.preset, run, **shared) for m in predicted]
        return cells
