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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reprior import priors
from reprior.diffusion.sampler import PAPER_SAMPLER, run
from reprior.errors import InputError
from reprior.weights import relative_ess
from reprior_bench import EVALUATION_SEED, metrics, tasks
from reprior_bench.exact_scores import EmpiricalDenoiser, GaussianDenoiser
from reprior_bench.job import Job
from reprior_bench.paper import NOT_GIVEN, paper_values
from reprior_bench.store import Record, Table
from reprior_bench.tables import UNRANKED
from reprior_bench.tasks import BENCHMARK, REGIMES
from reprior_bench.tasks.slcp import Slcp

__all__ = ["CASES", "EvidenceJob", "evidence_jobs", "evidence_rows"]

WIDTHS = ("0.02", "0.05", "0.3")  # standard deviations, in units of the prior's
POINTS = 10_000


@dataclass(frozen=True)
class EvidenceJob(Job):
    """One case on one task.

    Attributes:
        case: the case.
        task: the task; "gaussian" for `sampler_width`.
        regime: "id", "ood", or the width.
        observations: the number of observations.
        samples: draws per observation.
        seed: seeds the observations: those of the benchmark.
    """

    part = "evidence"

    case: str
    task: str
    regime: str
    observations: int = 10
    samples: int = 5_000
    seed: int = EVALUATION_SEED

    def __post_init__(self) -> None:
        if self.observations < 1:
            raise InputError(f"a case needs observations >= 1; got {self.observations}")

    def measure(self, bases: Path, cache: Path) -> dict[str, Any]:
        return {"values": [CASES[self.case](self, k) for k in range(self.observations)]}

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


def _no_change(job: EvidenceJob, k: int) -> float:
    return metrics.c2st(job.exact(k, "target"), job.exact(k, "training", copy=1))


def _exact_rmse(job: EvidenceJob, k: int) -> float:
    return metrics.rmse(job.exact(k, "target"), job.observation(k)[0])


def _ess_at(job: EvidenceJob, k: int, x: Tensor) -> float:
    task = tasks.get(job.task)
    p, q = task.training_prior(job.regime), task.target_prior(job.regime)
    theta = task.reference(x, job.samples, job.regime, "training", seed=job.seed + k)
    return relative_ess(priors.log_prob(q, theta) - priors.log_prob(p, theta))


def _ess(job: EvidenceJob, k: int) -> float:
    return _ess_at(job, k, job.observation(k)[1])


def _ess_p(job: EvidenceJob, k: int) -> float:
    task = tasks.get(job.task)
    theta = priors.sample(task.training_prior(job.regime), job.observations, job.seed)
    return _ess_at(job, k, task.simulate(theta, job.seed + 1)[k])


def _paper_reference(job: EvidenceJob, k: int) -> float:
    task = tasks.get(job.task)
    assert isinstance(task, Slcp)
    theirs = task.paper_reference(job.observation(k)[1], job.samples, job.regime, seed=job.seed + k)
    return metrics.c2st(theirs, job.exact(k, "target", copy=1))


def _sampler_floor(job: EvidenceJob, k: int) -> float:
    scale = tasks.get(job.task).training_prior(job.regime)
    mean, sd = scale.mean, scale.variance.sqrt()  # the paper's base works on standardised parameters
    points = (job.exact(k, "target", copy=1, n=POINTS) - mean) / sd
    denoiser = (
        EmpiricalDenoiser(points) if job.task == "two_moons" else GaussianDenoiser(points.mean(0), points.T.cov())
    )
    z = run(denoiser, job.samples, PAPER_SAMPLER, torch.Generator().manual_seed(job.seed + k))
    return metrics.c2st(job.exact(k, "target"), mean + sd * z[:, 0])


def _sampler_width(job: EvidenceJob, k: int) -> float:
    width = float(job.regime)
    denoiser = GaussianDenoiser(torch.zeros(1), torch.full((1, 1), width**2))
    z = run(denoiser, job.samples, PAPER_SAMPLER, torch.Generator().manual_seed(job.seed + k))
    return float(z.std()) / width


CASES: dict[str, Callable[[EvidenceJob, int], float]] = {
    "no_change": _no_change,
    "exact_rmse": _exact_rmse,
    "ess": _ess,
    "ess_p": _ess_p,
    "paper_reference": _paper_reference,
    "sampler_floor": _sampler_floor,
    "sampler_width": _sampler_width,
}
METRIC_OF = {"no_change": "c2st", "exact_rmse": "rmse", "paper_reference": "c2st", "sampler_floor": "c2st"}


def evidence_jobs(observations: int = 10, cases: Sequence[str] = (), seed: int = EVALUATION_SEED) -> list[EvidenceJob]:
    """Every case, on every task it speaks of.

    Arguments:
        observations: observations per case (a third of them for `sampler_floor`, which takes minutes each).
        cases: the cases; all if empty.
        seed: seeds the observations.
    """
    for case in cases:
        if case not in CASES:
            raise InputError(f"case {case!r} is unknown; allowed: {', '.join(CASES)}")
    few = max(1, observations // 3)
    wanted = [("no_change", "gaussian_linear", r, observations) for r in REGIMES]
    wanted += [("exact_rmse", "gaussian_linear", r, 1_000) for r in REGIMES]
    wanted += [(case, t, r, observations) for case in ("ess", "ess_p") for t in BENCHMARK for r in REGIMES]
    wanted += [("paper_reference", "slcp", r, observations) for r in REGIMES]
    wanted += [("sampler_floor", "two_moons", r, few) for r in REGIMES]
    wanted += [("sampler_floor", "gaussian_linear", "ood", few)]
    wanted += [("sampler_width", "gaussian", width, 3) for width in WIDTHS]
    samples = {"exact_rmse": 200, "sampler_width": 50_000}
    return [EvidenceJob(*w, samples.get(w[0], 5_000), seed) for w in wanted if not cases or w[0] in cases]


def evidence_rows(folder: str | Path, seed: int = EVALUATION_SEED) -> list[dict[str, Any]]:
    """The rows of evidence.csv: ours, mean and standard deviation over observations, beside the paper's figure.

    Of several records of a case, the one with the most observations counts.

    Arguments:
        folder: where the tables of records are.
        seed: the seed of the observations; records of other seeds are left out.
    """
    found: dict[tuple[str, str, str], tuple[EvidenceJob, Record]] = {}
    for record in Table(folder, EvidenceJob.part).records().values():
        job = EvidenceJob(**record["job"])
        key = (job.case, job.task, job.regime)
        if job.seed == seed and (key not in found or found[key][0].observations < job.observations):
            found[key] = (job, record)
    order = [(job.case, job.task, job.regime) for job in evidence_jobs()]
    return [_row(*found[key]) for key in order if key in found]


def _row(job: EvidenceJob, record: Record) -> dict[str, Any]:
    values = np.array(record["values"])
    theirs, which = _paper_figure(job)
    return {
        "case": job.case,
        "task": job.task,
        "regime": job.regime,
        "mean": float(values.mean()),
        "std": float(values.std(ddof=1)) if len(values) > 1 else math.nan,
        "paper": theirs,
        "paper_row": which,
        "observations": job.observations,
        "samples": job.samples,
        "seed": job.seed,
        "commit": record["commit"],
    }


def _paper_figure(job: EvidenceJob) -> tuple[float, str]:
    """The figure of the paper that a case stands beside, and which row it is."""
    paper = paper_values()
    if job.case in ("ess", "ess_p"):
        return paper.get((job.task, job.regime, "base", "ess"), NOT_GIVEN)[0], "ESS table"
    if job.case == "no_change":
        return paper[job.task, job.regime, "base", "c2st"][0], "base"
    metric = METRIC_OF.get(job.case, "")
    ranked = {k[2]: v[0] for k, v in paper.items() if (k[0], k[1], k[3]) == (job.task, job.regime, metric)}
    ranked = {method: value for method, value in ranked.items() if method not in UNRANKED}
    best = min(ranked, key=ranked.__getitem__, default="")
    return (ranked[best], best) if best else (math.nan, "")
