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
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reprior import priors
from reprior_bench import metrics
from reprior_bench import tasks
from reprior.adapted import adapt
from reprior_bench import EVALUATION_SEED
from reprior.diffusion.sampler import Sampler
from reprior.errors import InputError
from reprior.integrations.sbi import from_sbi, to_sbi
from reprior.integrations.sbi_sampled import seeded
from reprior.loading import load
from reprior.posterior import Posterior
from reprior.io import read_rows, write_rows

__all__ = ["METHODS", "NETWORK", "Comparison", "Row", "compare", "npse", "run", "summary"]

METHODS = ("no change", "sbi prior_guide", "reprior")
NETWORK = "network (p)"


@dataclass(frozen=True)
class Comparison:
    """What is compared.

    Attributes:
        pairs: the tasks and regimes.
        simulations: simulations that each NPSE posterior is trained on.
        epochs: the largest number of training epochs.
        observations: observations per task and regime.
        samples: samples per observation.
        steps: sampler steps, of both.
        fit_steps: sbi's own steps of its mixture fit (its default is 10,000).
    """

    pairs: tuple[tuple[str, str], ...] = (
        ("gaussian_linear", "id"),
        ("gaussian_linear", "ood"),
        ("two_moons", "id"),
        ("two_moons", "ood"),
    )
    simulations: int = 20_000
    epochs: int = 200
    observations: int = 3
    samples: int = 5_000
    steps: int = 100
    fit_steps: int = 10_000

    def __post_init__(self) -> None:
        least = min(self.simulations, self.epochs, self.observations, self.samples, self.fit_steps)
        if least < 1 or self.steps < 2:
            raise InputError(f"a comparison needs counts of at least 1 and at least 2 steps; got {asdict(self)}")


QUICK = Comparison(
    pairs=(("gaussian_linear", "id"), ("two_moons", "id")),
    simulations=2_000,
    epochs=20,
    observations=1,
    samples=1_000,
    steps=40,
    fit_steps=500,
)


@dataclass(frozen=True)
class Row:
    """One observation, one method."""

    task: str
    regime: str
    observation: int
    method: str
    steps: int
    samples: int
    mean_error: float
    sd_error: float
    c2st_fast: float
    adapt_seconds: float
    sample_seconds: float

    @classmethod
    def parse(cls, row: dict[str, str]) -> Row:
        """From a row of the CSV file."""
        kinds = {"int": int, "float": float, "str": str}
        return cls(**{f.name: kinds[str(f.type)](row[f.name]) for f in fields(cls)})

    @property
    def seconds(self) -> float:
        """What one user waits."""
        return self.adapt_seconds + self.sample_seconds


def run(out: Path, folder: Path, quick: bool = False) -> list[Row]:
    """Runs the pairs of task and regime that ``sbi_comparison.csv`` does not hold yet, and writes them there.

    Arguments:
        out: the folder of the results.
        folder: the folder of the NPSE posteriors: those that are missing are trained and kept there.
        quick: a small run, to see that it works; its figures mean nothing.
    """
    settings, tag = (QUICK, "-quick") if quick else (Comparison(), "")
    out.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    path = out / f"sbi_comparison{tag}.csv"
    for name, regime in settings.pairs:
        rows = read_rows(path)
        if not any((row["task"], row["regime"]) == (name, regime) for row in rows):
            write_rows([*rows, *(asdict(row) for row in compare(name, regime, settings, folder, tag))], path)
    return [Row.parse(row) for row in read_rows(path)]


def npse(task: tasks.Task, regime: str, settings: Comparison, path: Path) -> Posterior:
    """The NPSE posterior of a task: from a file, or trained by sbi and written there."""
    theta = priors.sample(task.training_prior(regime), settings.simulations, seed=0)
    x = task.simulate(theta, seed=1)
    if path.exists():
        kept = load(path)
        assert isinstance(kept, Posterior)
        return kept.with_simulations(theta, x)
    from sbi.inference import NPSE

    with seeded(0), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = NPSE(prior=task.training_prior(regime), show_progress_bars=False)
        trainer.append_simulations(theta, x).train(training_batch_size=500, max_num_epochs=settings.epochs)
        posterior = from_sbi(trainer.build_posterior(), theta, x, parameters=task.parameters)
    posterior.save(path, simulations=False)
    return posterior


def compare(name: str, regime: str, settings: Comparison, folder: Path, tag: str = "") -> list[Row]:
    """All methods at some observations of one task and regime."""
    task = tasks.get(name)
    posterior = npse(task, regime, settings, folder / f"npse-{name}-{regime}{tag}.safetensors")
    _, x = task.observations(regime, settings.observations, EVALUATION_SEED)
    rows = []
    for method in METHODS:
        began = time.process_time()
        sample = _sampler(method, posterior, task, regime, settings)
        adapting = time.process_time() - began
        for k, x_k in enumerate(x):
            began = time.process_time()
            theta = sample(x_k, k)
            seconds = time.process_time() - began
            judged = {method: "target"} if method != "no change" else {NETWORK: "training", method: "target"}
            for label, prior in judged.items():
                exact = task.reference(x_k, settings.samples, regime, prior, seed=k)
                errors = judge(theta, exact)
                rows.append(Row(name, regime, k, label, settings.steps, len(theta), *errors, adapting, seconds))
    return rows


def judge(theta: Tensor, exact: Tensor) -> tuple[float, float, float]:
    """Mean error, sd error and c2st_fast of samples, with shape (n, d), against exact ones."""
    if not bool(torch.isfinite(theta).all()):
        return math.nan, math.nan, 1.0
    return *metrics.moment_errors(exact, theta), metrics.c2st_fast(exact, theta)


def _sampler(
    method: str, posterior: Posterior, task: tasks.Task, regime: str, settings: Comparison
) -> Callable[[Tensor, int], Tensor]:
    """A function of (x, seed) that draws the samples; what one change of prior needs once is done here."""
    n, sampler = settings.samples, Sampler(steps=settings.steps)
    if method == "no change":
        return lambda x, seed: posterior.sample((n,), x, seed=seed, sampler=sampler)
    p, q = task.training_prior(regime), task.target_prior(regime)
    if method == "reprior":
        adapted = adapt(posterior, q)
        return lambda x, seed: adapted.sample((n,), x, seed=seed, sampler=sampler)
    source = to_sbi(posterior)
    guidance: dict[str, Any] = {"train_prior": p, "test_prior": q, "num_steps": settings.fit_steps}
    _fit_mixture(guidance, settings)

    def sample(x: Tensor, seed: int) -> Tensor:
        with seeded(seed):
            return source.sample(
                (n,),
                x=x.unsqueeze(0),
                steps=settings.steps,
                guidance_method="prior_guide",
                guidance_params=guidance,
                show_progress_bars=False,
                reject_outside_prior=False,  # the priors are unbounded; NaN would be drawn again for ever
            )

    return sample


def _fit_mixture(guidance: dict[str, Any], settings: Comparison) -> None:
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


def summary(rows: list[Row]) -> list[dict[str, Any]]:
    """The rows averaged over observations, one for each task, regime and method, with the seconds of adapt and sample together."""
    out = []
    for key in dict.fromkeys((row.task, row.regime, row.method) for row in rows):
        some = [row for row in rows if (row.task, row.regime, row.method) == key]
        means = {
            short: sum(getattr(row, name) for row in some) / len(some)
            for short, name in (("mean", "mean_error"), ("sd", "sd_error"), ("c2st", "c2st_fast"), ("s", "seconds"))
        }
        out.append({"task": key[0], "q": key[1], "method": key[2], **means})
    return out
