"""What the paper's stated settings give, from exact references alone: no network, nothing trained.

Each case is a figure of the paper's tables that its stated settings do not give, or one that they force:

    no_change        C2ST between the exact posteriors under p and q: what no change of prior scores with a perfect base
    exact_rmse       RMSE of the exact posterior under q to the true parameters; samples that are too narrow have a lower one
    ess              ESS/N of the weights q/p over the exact posterior under p, at observations of q's marginal
    ess_p            the same at observations of p's marginal, as the paper does not say which
    paper_reference  SLCP: C2ST of the exact posterior against the paper's reference, which flips signs that are no symmetry
    sampler_floor    C2ST of 25 Euler-Maruyama steps (the paper's sampler) with the exact score against the exact posterior
    sampler_width    the same on a Gaussian of a given width: its standard deviation over the true one

The score of `sampler_floor` is that of the Gaussian with the moments of 10,000 exact draws (Gaussian Linear OOD, whose
posterior is Gaussian), or that of the draws themselves (Two Moons), which is off the exact one only at noise below their
spacing, finer than the sampler's last step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reprior import priors
from reprior_bench import metrics
from reprior_bench import tasks
from reprior_bench import EVALUATION_SEED
from reprior_bench.exact_scores import EmpiricalDenoiser, GaussianDenoiser
from reprior_bench.paper import paper_values
from reprior_bench.presets import REGIMES, TASKS
from reprior_bench.records import commit, read_record, write_once
from reprior_bench.tables import UNRANKED
from reprior.diffusion.sampler import PAPER_SAMPLER, run
from reprior.errors import InputError
from reprior_bench.tasks.slcp import Slcp

__all__ = ["CASES", "EvidenceCell", "evidence_cells", "evidence_rows"]

WIDTHS = ("0.02", "0.05", "0.3")  # standard deviations, in units of the prior's
POINTS = 10_000


@dataclass(frozen=True)
class EvidenceCell:
    """One case on one task, in the runner's form.

    Attributes:
        method: the case.
        task: the task; "gaussian" for `sampler_width`.
        regime: "id", "ood", or the width.
        observations: the number of observations.
        samples: draws per observation.
        seed: seeds the observations: those of the benchmark.
        preset: "exact", for the progress table.
    """

    method: str
    task: str
    regime: str
    observations: int = 10
    samples: int = 5_000
    seed: int = EVALUATION_SEED
    preset: str = "exact"

    def __post_init__(self) -> None:
        if self.observations < 1:
            raise InputError(f"a case needs observations >= 1; got {self.observations}")

    @property
    def base(self) -> None:
        """No base is needed."""

    @property
    def name(self) -> str:
        """The name of its record."""
        return f"{self.method}-{self.task}-{self.regime}-{self.observations}x{self.samples}-seed{self.seed}"

    def record(self, folder: Path) -> Path:
        """Where its record goes."""
        return folder / "evidence" / f"{self.name}.json"

    def done(self, folder: Path) -> bool:
        """Whether its record is there."""
        return self.record(folder).exists()

    def execute(self, folder: Path, bases: Path) -> Path:
        """Computes the case unless it is done, and returns the path of its record."""
        path = self.record(folder)
        if not self.done(folder):
            began = time.monotonic()
            values = [CASES[self.method](self, k) for k in range(self.observations)]
            data = {"cell": asdict(self), "values": values, "commit": commit(), "seconds": time.monotonic() - began}
            write_once(path, data)
        return path

    def exact(self, k: int, prior: str, copy: int = 0, n: int = 0) -> Tensor:
        """Exact posterior draws for observation k; another copy is an independent set."""
        task = tasks.get(self.task)
        x = self.observation(k)[1]
        return task.reference(x, n or self.samples, self.regime, prior, seed=self.seed + k + 1_000 * copy)

    def observation(self, k: int) -> tuple[Tensor, Tensor]:
        """theta* and x of observation k, of q's marginal."""
        theta, x = _observations(self.task, self.regime, self.observations, self.seed)
        return theta[k], x[k]


@cache
def _observations(task: str, regime: str, n: int, seed: int) -> tuple[Tensor, Tensor]:
    return tasks.get(task).observations(regime, n, seed=seed)


def _no_change(cell: EvidenceCell, k: int) -> float:
    return metrics.c2st(cell.exact(k, "target"), cell.exact(k, "training", copy=1))


def _exact_rmse(cell: EvidenceCell, k: int) -> float:
    return metrics.rmse(cell.exact(k, "target"), cell.observation(k)[0])


def _ess_at(cell: EvidenceCell, k: int, x: Tensor) -> float:
    task = tasks.get(cell.task)
    p, q = task.training_prior(cell.regime), task.target_prior(cell.regime)
    theta = task.reference(x, cell.samples, cell.regime, "training", seed=cell.seed + k)
    return metrics.ess(priors.log_prob(q, theta) - priors.log_prob(p, theta))


def _ess(cell: EvidenceCell, k: int) -> float:
    return _ess_at(cell, k, cell.observation(k)[1])


def _ess_p(cell: EvidenceCell, k: int) -> float:
    task = tasks.get(cell.task)
    theta = priors.sample(task.training_prior(cell.regime), cell.observations, cell.seed)
    return _ess_at(cell, k, task.simulate(theta, cell.seed + 1)[k])


def _paper_reference(cell: EvidenceCell, k: int) -> float:
    task = tasks.get(cell.task)
    assert isinstance(task, Slcp)
    theirs = task.paper_reference(cell.observation(k)[1], cell.samples, cell.regime, seed=cell.seed + k)
    return metrics.c2st(theirs, cell.exact(k, "target", copy=1))


def _sampler_floor(cell: EvidenceCell, k: int) -> float:
    scale = tasks.get(cell.task).training_prior(cell.regime)
    mean, sd = scale.mean, scale.variance.sqrt()  # the paper's base works on standardised parameters
    points = (cell.exact(k, "target", copy=1, n=POINTS) - mean) / sd
    denoiser = (
        EmpiricalDenoiser(points) if cell.task == "two_moons" else GaussianDenoiser(points.mean(0), points.T.cov())
    )
    z = run(denoiser, cell.samples, PAPER_SAMPLER, torch.Generator().manual_seed(cell.seed + k))
    return metrics.c2st(cell.exact(k, "target"), mean + sd * z[:, 0])


def _sampler_width(cell: EvidenceCell, k: int) -> float:
    width = float(cell.regime)
    denoiser = GaussianDenoiser(torch.zeros(1), torch.full((1, 1), width**2))
    z = run(denoiser, cell.samples, PAPER_SAMPLER, torch.Generator().manual_seed(cell.seed + k))
    return float(z.std()) / width


CASES: dict[str, Callable[[EvidenceCell, int], float]] = {
    "no_change": _no_change,
    "exact_rmse": _exact_rmse,
    "ess": _ess,
    "ess_p": _ess_p,
    "paper_reference": _paper_reference,
    "sampler_floor": _sampler_floor,
    "sampler_width": _sampler_width,
}
METRIC_OF = {"no_change": "c2st", "exact_rmse": "rmse", "paper_reference": "c2st", "sampler_floor": "c2st"}


def evidence_cells(observations: int = 10, cases: Sequence[str] = ()) -> list[EvidenceCell]:
    """Every case, on every task it speaks of.

    Arguments:
        observations: observations per case (a third of them for `sampler_floor`, which takes minutes each).
        cases: the cases; all if empty.
    """
    for case in cases:
        if case not in CASES:
            raise InputError(f"case {case!r} is unknown; allowed: {', '.join(CASES)}")
    few = max(1, observations // 3)
    cells = [EvidenceCell("no_change", "gaussian_linear", r, observations) for r in REGIMES]
    cells += [EvidenceCell("exact_rmse", "gaussian_linear", r, 1_000, samples=200) for r in REGIMES]
    cells += [EvidenceCell(case, t, r, observations) for case in ("ess", "ess_p") for t in TASKS for r in REGIMES]
    cells += [EvidenceCell("paper_reference", "slcp", r, observations) for r in REGIMES]
    cells += [EvidenceCell("sampler_floor", "two_moons", r, few) for r in REGIMES]
    cells += [EvidenceCell("sampler_floor", "gaussian_linear", "ood", few)]
    cells += [EvidenceCell("sampler_width", "gaussian", w, 3, samples=50_000) for w in WIDTHS]
    return [c for c in cells if not cases or c.method in cases]


def evidence_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of evidence.csv: ours, mean and standard deviation over observations, beside the paper's figure.

    Of several records of a case, the one with the most observations counts.
    """
    found: dict[tuple[str, str, str], tuple[EvidenceCell, dict[str, Any]]] = {}
    for path in sorted((folder / "evidence").glob("*.json")):
        record = read_record(path)
        cell = EvidenceCell(**record["cell"])
        key = (cell.method, cell.task, cell.regime)
        if key not in found or found[key][0].observations < cell.observations:
            found[key] = (cell, record)
    order = [(c.method, c.task, c.regime) for c in evidence_cells()]
    return [_row(*found[key]) for key in order if key in found]


def _row(cell: EvidenceCell, record: dict[str, Any]) -> dict[str, Any]:
    values = np.array(record["values"])
    theirs, which = _paper_figure(cell)
    return {
        "case": cell.method,
        "task": cell.task,
        "regime": cell.regime,
        "mean": float(values.mean()),
        "std": _spread(values),
        "paper": theirs,
        "paper_row": which,
        "observations": cell.observations,
        "samples": cell.samples,
        "seed": cell.seed,
        "commit": record["commit"],
    }


def _spread(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


def _paper_figure(cell: EvidenceCell) -> tuple[float, str]:
    """The figure of the paper that a case stands beside, and which row it is."""
    paper = paper_values()
    if cell.method in ("ess", "ess_p"):
        return paper[cell.task, cell.regime, "base", "ess"][0], "ESS table"
    if cell.method == "no_change":
        return paper[cell.task, cell.regime, "base", "c2st"][0], "base"
    metric = METRIC_OF.get(cell.method, "")
    ranked = {k[2]: v[0] for k, v in paper.items() if (k[0], k[1], k[3]) == (cell.task, cell.regime, metric)}
    ranked = {method: value for method, value in ranked.items() if method not in UNRANKED}
    best = min(ranked, key=ranked.__getitem__, default="")
    return (ranked[best], best) if best else (math.nan, "")
