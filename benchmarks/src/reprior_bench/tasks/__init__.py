"""The benchmark tasks: simulator, p and q for two regimes, and a reference posterior. A task is one file, and one line here.

task = reprior_bench.tasks.get("oup")
theta = reprior.priors.sample(task.training_prior("id"), 50_000, seed=0)
x = task.simulate(theta, seed=1)
theta_star, x_obs = task.observations("id", 10, seed=2)
exact = task.reference(x_obs[0], 5_000, "id")
"""

from __future__ import annotations

from reprior.errors import InputError
from reprior_bench.tasks.base import Task
from reprior_bench.tasks.gaussian_linear import GaussianLinear
from reprior_bench.tasks.oup import Oup
from reprior_bench.tasks.slcp import Slcp
from reprior_bench.tasks.turin import Turin
from reprior_bench.tasks.turin_physical import TurinPhysical
from reprior_bench.tasks.two_moons import TwoMoons

__all__ = ["BENCHMARK", "REGIMES", "SERIES", "Task", "get", "names"]

_TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        TwoMoons,
        Slcp,
        GaussianLinear,
        Oup,
        Turin,
        TurinPhysical,
    )
}
BENCHMARK = tuple(name for name, task in _TASKS.items() if task.has_reference)
SERIES = tuple(name for name in BENCHMARK if _TASKS[name].is_series)
REGIMES = ("id", "ood")


def names() -> tuple[str, ...]:
    """The names of the tasks."""
    return tuple(_TASKS)


def get(name: str) -> Task:
    """The task of that name."""
    if name not in _TASKS:
        raise InputError(f"unknown task {name!r}; allowed: {', '.join(_TASKS)}")
    return _TASKS[name]()
