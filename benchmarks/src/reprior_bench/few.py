"""Few simulations and wide x: do 90 % intervals of `reprior.train`, with its defaults, hold the truth?

Two problems with d = 3 parameters, theta ~ N(0, I), whose posteriors are known. Both are x = B s(theta) + noise, with m
entries of x, B'B = m I (three random directions) and noise of variance m c in each entry: what x says of theta,
t = B'x / m = s(theta) + N(0, c I), is then the same for every m, and only finding it gets harder.

- linear: s = M theta, a fixed mixing M, c = 0.25. The posterior is Gaussian, in closed form.
- curved: s = (theta_1 + 0.7 theta_2^2, theta_2 + 0.3 theta_3, exp(theta_3 / 2)), c = 0.1: skewed, bent; by a sum over draws
  of the prior.

Of each base: the fraction of fresh observations whose central 90 % interval holds the truth, per parameter; and how wide these
intervals are, as a multiple of the exact ones (mean over mean).

    reprior-bench few --cell linear:300:100 --cell curved:1000:2000
"""

from __future__ import annotations

import re
import resource
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor
from torch.distributions import Independent, Normal

from reprior.errors import InputError
from reprior.io import read_rows, write_rows
from reprior.trainer import train

__all__ = ["PROBLEMS", "Problem", "measure", "measure_cells"]

DIM = 3
SIMULATIONS = (200, 1_000, 5_000)
ENTRIES = (5, 50, 500, 2_000, 10_000)
FRESH = 200  # observations that are asked
DRAWS = 400  # of each posterior
GRID = 200_000  # draws of the prior that stand for the exact posterior of the curved problem
LEVEL = 0.9
SEED = 30_000  # of development
MIXING = torch.tensor([[1.0, 0.6, 0.0], [0.0, 0.8, 0.5], [0.3, 0.0, 0.9]])
NOISE = {"linear": 0.25, "curved": 0.1}
PROBLEMS = tuple(NOISE)


class Problem:
    """One problem with m entries of x.

    Arguments:
        name: "linear" or "curved".
        entries: m.
    """

    def __init__(self, name: str, entries: int):
        self.name, self.entries, self.noise = name, entries, NOISE[name]
        raw = torch.randn(entries, DIM, generator=Generator().manual_seed(SEED))
        self.directions = torch.linalg.qr(raw).Q * entries**0.5
        self.prior = Independent(Normal(torch.zeros(DIM), torch.ones(DIM)), 1)

    def signal(self, theta: Tensor) -> Tensor:
        """s(theta), with shape (n, 3)."""
        if self.name == "linear":
            return theta @ MIXING.T
        one, two, three = theta.unbind(-1)
        return torch.stack([one + 0.7 * two**2, two + 0.3 * three, (three / 2).exp()], -1)

    def simulate(self, n: int, seed: int) -> tuple[Tensor, Tensor]:
        """Pairs theta (n, 3) and x (n, m)."""
        generator = Generator().manual_seed(seed)
        theta = torch.randn(n, DIM, generator=generator)
        x = torch.randn(n, self.entries, generator=generator).mul_((self.entries * self.noise) ** 0.5)
        return theta, x.addmm_(self.signal(theta), self.directions.T)

    def exact_widths(self, x: Tensor) -> Tensor:
        """The widths of the exact central 90 % intervals, with shape (K, 3)."""
        seen = x @ self.directions / self.entries
        tails = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        if self.name == "linear":
            cov = torch.linalg.inv(torch.eye(DIM) + MIXING.T @ MIXING / self.noise)
            return (2 * Normal(0.0, 1.0).icdf(tails[1]) * cov.diagonal().sqrt()).expand(len(x), DIM)
        theta = torch.randn(GRID, DIM, generator=Generator().manual_seed(SEED + 1))
        s, widths = self.signal(theta), []
        orders = theta.argsort(0)
        for t in seen:
            weight = torch.softmax(-(s - t).square().sum(1) / (2 * self.noise), 0).double()
            ends = []
            for i in range(DIM):
                below = weight[orders[:, i]].cumsum(0)
                ends.append(theta[orders[torch.searchsorted(below, tails.double()).clamp(max=GRID - 1), i], i])
            widths.append(torch.stack([e[1] - e[0] for e in ends]))
        return torch.stack(widths)


def measure(name: str, n: int, entries: int, seed: int, progress: bool = False) -> dict[str, Any]:
    """Trains one base with the defaults and asks it at fresh observations."""
    problem = Problem(name, entries)
    theta, x = problem.simulate(n, SEED + 10 + seed)
    began = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior, fitted = train(theta, x, problem.prior, seed=seed, progress=progress, return_fit=True)
    took = time.process_time() - began
    truth, fresh = problem.simulate(FRESH, SEED + 5_000 + seed)
    exact = problem.exact_widths(fresh)
    began = time.process_time()
    draws = posterior.sample_batched((DRAWS,), fresh, seed=seed)
    drawn = time.process_time() - began
    low, high = draws.quantile((1 - LEVEL) / 2, dim=0), draws.quantile((1 + LEVEL) / 2, dim=0)
    held = ((truth > low) & (truth < high)).double().mean(0)
    ratio = (high - low).mean(0) / exact.mean(0)
    return {
        **{f"held_{i + 1}": round(float(v), 3) for i, v in enumerate(held)},
        **{f"width_{i + 1}": round(float(v), 3) for i, v in enumerate(ratio)},
        "train_s": round(took, 1),
        "sample_s": round(drawn, 1),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "best_step": fitted.best_step,
        "network_factor": round(fitted.factor, 3),
        "warnings": " | ".join(str(w.message)[:60] for w in caught),
    }


def measure_cells(path: Path, cells: Sequence[str], seeds: int, progress: bool = False) -> Iterator[dict[str, Any]]:
    """Measures the cells that the CSV file does not hold yet; each is written as it is done.

    Arguments:
        path: the CSV file.
        cells: "problem:n:m", as in "linear:300:100"; all of them if empty.
        seeds: how many trainings of each.
        progress: whether to show the progress of each training.

    Yields: the row of each cell.
    """
    everything = [f"{p}:{n}:{m}" for n in SIMULATIONS for m in ENTRIES for p in PROBLEMS]
    for cell in cells or everything:
        if not re.fullmatch(rf"({'|'.join(PROBLEMS)}):[1-9]\d*:[1-9]\d*", cell):
            raise InputError(
                f"cell {cell!r} is not problem:n:m with a problem of {', '.join(PROBLEMS)}, as linear:300:100"
            )
    for cell in cells or everything:
        name, n, entries = cell.split(":")
        for seed in range(seeds):
            key = {"problem": name, "n": int(n), "m": int(entries), "seed": seed}
            rows = read_rows(path)
            row: Any = next((r for r in rows if all(r[k] == str(v) for k, v in key.items())), None)
            if row is None:
                row = {**key, **measure(name, int(n), int(entries), seed, progress)}
                write_rows([*read_rows(path), row], path)
            yield row
