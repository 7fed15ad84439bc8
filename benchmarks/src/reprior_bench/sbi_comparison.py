"""reprior beside sbi's own `prior_guide`, on the same NPSE posterior, against exact target posteriors.

For each task and regime one NPSE posterior (sbi's defaults: variance exploding, an MLP) is trained on draws of p, and its
prior is changed to q at some observations drawn under q, by sbi and by reprior with ``method="auto"``, at the same
number of sampler steps. Errors are those of n samples against exact draws of q(theta | x):

    mean error = rms_i |mean_i - mean*_i| / sd*_i,      sd error = rms_i |sd_i / sd*_i - 1|      (i: parameters)

and the accuracy of a classifier that tells the two sets apart (`c2st_fast`; 1/2 is perfect). The row "no change" is the
NPSE posterior as it is, and "network (p)" the same samples against exact draws of p(theta | x): what the network itself
gets wrong at that observation, before any change of prior. Seconds are CPU seconds (what one thread takes, whatever else
runs): adapt (sbi: the fit of its Gaussian mixture to q/p, at its first step) and the samples of one observation.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import reprior
from reprior import priors
from reprior.diffusion.sampler import Sampler
from reprior.errors import InputError
from reprior.integrations.sbi import to_sbi
from reprior.posterior import Posterior
from reprior.seeds import seeded
from reprior_bench import EVALUATION_SEED, metrics, tasks
from reprior_bench.job import Job
from reprior_bench.store import Record
from reprior_bench.tasks import REGIMES, Task

__all__ = ["METHODS", "NETWORK", "SbiJob", "jobs", "npse", "summary"]

METHODS = ("no change", "sbi prior_guide", "reprior")
NETWORK = "network (p)"


@dataclass(frozen=True)
class SbiJob(Job):
    """All methods at some observations of one task and regime.

    Attributes:
        task: the name of the task.
        regime: "id" or "ood".
        simulations: simulations that the NPSE posterior is trained on.
        epochs: the largest number of training epochs.
        observations: observations per task and regime.
        samples: samples per observation.
        steps: sampler steps, of both.
        fit_steps: sbi's own steps of its mixture fit (its default is 10,000).
        seed: seeds the observations.
    """

    part = "sbi"

    task: str
    regime: str
    simulations: int = 20_000
    epochs: int = 200
    observations: int = 3
    samples: int = 5_000
    steps: int = 100
    fit_steps: int = 10_000
    seed: int = EVALUATION_SEED

    def __post_init__(self) -> None:
        smallest = min(self.simulations, self.epochs, self.observations, self.samples, self.fit_steps)
        if smallest < 1 or self.steps < 2:
            raise InputError(f"a comparison needs counts of at least 1 and at least 2 steps; got {self}")

    def measure(self, bases: Path, cache: Path) -> dict[str, Any]:
        task = tasks.get(self.task)
        posterior = npse(task, self, bases / f"npse-{self.task}-{self.regime}.safetensors")
        _, x = task.observations(self.regime, self.observations, self.seed)
        rows = []
        for method in METHODS:
            began = time.process_time()
            sample = _sampler(method, posterior, task, self)
            adapting = time.process_time() - began
            for k, x_k in enumerate(x):
                began = time.process_time()
                theta = sample(x_k, k)
                seconds = {"adapt_seconds": adapting, "sample_seconds": time.process_time() - began}
                judged = {method: "target"} if method != "no change" else {NETWORK: "training", method: "target"}
                for label, prior in judged.items():
                    exact = task.reference(x_k, self.samples, self.regime, prior, seed=k)
                    rows.append({"observation": k, "method": label, **judge(theta, exact), **seconds})
        return {"rows": rows}


def jobs(seed: int = EVALUATION_SEED) -> list[SbiJob]:
    """The comparisons that the docs show."""
    return [SbiJob(task, regime, seed=seed) for task in ("gaussian_linear", "two_moons") for regime in REGIMES]


def npse(task: Task, job: SbiJob, path: Path) -> Posterior:
    """The NPSE posterior of a task: from a file, or trained by sbi and written there.

    Arguments:
        task: the task.
        job: what it is trained for.
        path: its file.
    """
    prior = task.training_prior(job.regime)
    theta = priors.sample(prior, job.simulations, seed=0)
    x = task.simulate(theta, seed=1)
    if path.exists():
        kept = reprior.load(path)
        assert isinstance(kept, Posterior)
        return kept.with_simulations(theta, x)
    from sbi.inference import NPSE

    with seeded(0), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = NPSE(prior=prior, show_progress_bars=False)
        trainer.append_simulations(theta, x).train(training_batch_size=500, max_num_epochs=job.epochs)
        posterior = reprior.from_sbi(trainer.build_posterior(), theta, x, parameters=task.parameters)
    posterior.save(path, simulations=False)
    return posterior


def judge(theta: Tensor, exact: Tensor) -> dict[str, float]:
    """Mean error, sd error and c2st_fast of samples, with shape (n, d), against exact ones."""
    if not bool(torch.isfinite(theta).all()):
        return {"mean_error": math.nan, "sd_error": math.nan, "c2st_fast": 1.0}
    mean_error, sd_error = metrics.moment_errors(exact, theta)
    return {"mean_error": mean_error, "sd_error": sd_error, "c2st_fast": metrics.c2st_fast(exact, theta)}


def _sampler(method: str, posterior: Posterior, task: Task, job: SbiJob) -> Callable[[Tensor, int], Tensor]:
    """A function of (x, seed) that draws the samples; what one change of prior needs once is done here."""
    n, sampler = job.samples, Sampler(steps=job.steps)
    if method == "no change":
        return lambda x, seed: posterior.sample((n,), x=x, seed=seed, sampler=sampler)
    p, q = task.training_prior(job.regime), task.target_prior(job.regime)
    if method == "reprior":
        adapted = reprior.adapt(posterior, q)
        return lambda x, seed: adapted.sample((n,), x=x, seed=seed, sampler=sampler)
    source = to_sbi(posterior)
    guidance: dict[str, Any] = {"train_prior": p, "test_prior": q, "num_steps": job.fit_steps}
    _fit_mixture(guidance)

    def sample(x: Tensor, seed: int) -> Tensor:
        with seeded(seed):
            return source.sample(
                (n,),
                x=x.unsqueeze(0),
                steps=job.steps,
                guidance_method="prior_guide",
                guidance_params=guidance,
                show_progress_bars=False,
                reject_outside_prior=False,  # the priors are unbounded; NaN would be drawn again for ever
            )

    return sample


def _fit_mixture(guidance: dict[str, Any]) -> None:
    """sbi's fit of q/p, which it keeps for all later steps of the same priors and settings."""
    from sbi.inference.potentials.vector_field_adaptor import PriorGuideConfig
    from sbi.utils.vector_field_utils import fit_gmm_ratio

    config = PriorGuideConfig(**guidance)
    with seeded(0):
        fit_gmm_ratio(
            config.train_prior,
            config.test_prior,
            int(config.K),
            num_steps=config.num_steps,
            batch_size=config.batch_size,
            lr=config.lr,
            covariance_type=config.covariance_type,
            min_cov=config.min_cov,
            max_log_ratio=config.max_log_ratio,
            device=torch.device("cpu"),
        )


def summary(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The records averaged over observations, one row for each task, regime and method.

    Columns: errors of mean and sd, c2st_fast, and the seconds of adapt and sample together.
    """
    out = []
    for record in records:
        rows = record["rows"]
        for method in dict.fromkeys(row["method"] for row in rows):
            mine = [row for row in rows if row["method"] == method]
            errors = {
                short: sum(row[name] for row in mine) / len(mine)
                for short, name in (("mean", "mean_error"), ("sd", "sd_error"), ("c2st", "c2st_fast"))
            }
            seconds = sum(row["adapt_seconds"] + row["sample_seconds"] for row in mine) / len(mine)
            place = {"task": record["job"]["task"], "q": record["job"]["regime"], "method": method}
            out.append({**place, **errors, "s": seconds})
    return out
