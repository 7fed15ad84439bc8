"""Is the verdict right? Cases from no change to a hopeless one, judged against exact posteriors.

Every case is a task, a regime, a change of prior and a method; x is drawn from the case's own target prior. The adapted
samples that the report looks at are compared with exact ones by `c2st_fast`, which the report does not know. Two
rates follow:

    caught   the share of cases above 0.60 where the verdict is "caution" or "do not trust"
    passed   the share of cases below 0.56 where it is "ok"

Thresholds may be tuned on cases of the development seed only; rates are reported on the evaluation seed.

    python -m reprior.benchmark.verdicts BASES OUT.csv [--seed 30000] [--tasks two_moons,oup]
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributions as td

from reprior import metrics, priors, tasks
from reprior.adapted import AdaptedPosterior, adapt
from reprior.benchmark.bases import EVALUATION_SEED, BaseSpec, get_base, one_thread
from reprior.change import make_change
from reprior.diagnostics import DiagnoseSettings, Thresholds, diagnose
from reprior.diagnostics.checks import MEANINGS
from reprior.errors import InputError
from reprior.guidance.density_ratio import DensityRatioGuidance, RatioModel, RatioSettings
from reprior.networks.ratio import RatioNetworkSettings
from reprior.posterior import Posterior

__all__ = ["KINDS", "Case", "cases", "rates", "run", "target_of"]

TASKS = ("two_moons", "gaussian_linear", "slcp", "oup", "turin")
REGIMES = ("id", "ood")
HIGH, LOW = 0.60, 0.56
COLUMNS = ("task", "regime", "kind", "seed", "method", "verdict", "c2st_fast", "seconds", *MEANINGS, "why")

# kind: what the target prior (or the method) is.
KINDS: dict[str, str] = {
    "none": "q = p",
    "half": "half way from p to the task's q",
    "target": "the task's q",
    "shift1": "p moved by 1 standard deviation",
    "shift2": "p moved by 2",
    "shift3": "p moved by 3",
    "shift4": "p moved by 4",
    "shift6": "p moved by 6",
    "narrow": "p at a third of its width",
    "wide": "p at 1.5 times its width",
    "mixture": "two narrow modes",
    "unchanged": "the task's q, but nothing is done",
    "broken": "the task's q, a ratio network of random weights",
    "short": "the task's q, a ratio network trained for 20 steps",
}


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        task: the name of the task.
        regime: "id" or "ood".
        kind: one of `KINDS`.
        seed: seeds the observation.
    """

    task: str
    regime: str
    kind: str
    seed: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"kind {self.kind!r} is unknown; allowed: {', '.join(KINDS)}")

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells it from other cases in a file."""
        return self.task, self.regime, self.kind, str(self.seed)


def cases(seed: int, names: Sequence[str] = TASKS, repeats: int = 1) -> Iterator[Case]:
    """All cases: tasks, regimes and kinds, each with ``repeats`` observations."""
    for name in names:
        for regime in REGIMES:
            for kind in KINDS:
                for k in range(repeats):
                    yield Case(name, regime, kind, seed + k)


def moments(prior: Any) -> tuple[Tensor, Tensor]:
    """Mean and covariance of a prior, from 20,000 draws where it is no plain Gaussian."""
    if isinstance(prior, td.MultivariateNormal):
        return prior.loc, prior.covariance_matrix
    if isinstance(prior, td.Independent) and isinstance(prior.base_dist, td.Normal):
        return prior.base_dist.loc, torch.diag(prior.base_dist.variance)
    draws = priors.sample(prior, 20_000, 0)
    return draws.mean(0), torch.cov(draws.T)


def gaussian(mean: Tensor, cov: Tensor) -> Any:
    """A Gaussian, as independent normals where the covariance is diagonal (a simpler change for the methods)."""
    if bool((cov - torch.diag(cov.diagonal())).abs().max() < 1e-7):
        return td.Independent(td.Normal(mean, cov.diagonal().sqrt()), 1)
    return td.MultivariateNormal(mean, (cov + cov.T) / 2)


def target_of(case: Case) -> Any:
    """The target prior of a case."""
    task = tasks.get(case.task)
    p, q = task.training_prior(case.regime), task.target_prior(case.regime)
    mean, cov = moments(p)
    root = torch.linalg.cholesky(cov)
    along = torch.ones(len(mean)) / math.sqrt(len(mean))
    if case.kind == "none":
        return p
    if case.kind.startswith("shift"):
        return gaussian(mean + float(case.kind[5:]) * root @ along, cov)
    if case.kind == "half":
        other, wide = moments(q)
        return gaussian((mean + other) / 2, (cov + wide) / 2)
    if case.kind == "narrow":
        return gaussian(mean + 0.5 * root @ along, cov / 9)
    if case.kind == "wide":
        return gaussian(mean, 2.25 * cov)
    if case.kind == "mixture":
        modes = torch.stack([mean + 0.8 * root @ along, mean - 0.8 * root @ along])
        parts = td.MultivariateNormal(modes, (cov / 6).expand(2, -1, -1))
        return td.MixtureSameFamily(td.Categorical(torch.tensor([0.6, 0.4])), parts)
    return q


def adapted_of(case: Case, posterior: Posterior) -> AdaptedPosterior:
    """The adapted posterior of a case; the last three kinds are meant to be bad."""
    target = target_of(case)
    if case.kind == "unchanged":
        return adapt(posterior, target, method="none", seed=case.seed)
    if case.kind == "broken":
        return _broken(posterior, target, case.seed)
    if case.kind == "short":
        settings = RatioSettings(anchor="off", observations=100, draws=32)
        settings = replace(settings, training=replace(settings.training, steps=20, evaluate_every=20))
        return adapt(posterior, target, method="nre", settings=settings, seed=case.seed)
    return adapt(posterior, target, seed=case.seed)


def _broken(posterior: Posterior, target: Any, seed: int) -> AdaptedPosterior:
    change = make_change(posterior.prior, target, posterior.scales.theta, seed)
    assert posterior.simulations is not None
    standard = posterior.scales.x.forward(posterior.simulations.x[:2])
    features = posterior.base.features(standard).shape[-1]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = RatioModel(posterior.dim, features, RatioNetworkSettings(), anchored=False)
        torch.nn.init.normal_(model.network.out.weight, std=1.0)
    model.requires_grad_(False)
    guidance = DensityRatioGuidance("nre", model, posterior, change, RatioSettings())
    return AdaptedPosterior(posterior, change, guidance, "random weights")


def observation_of(case: Case) -> Tensor:
    """x of a case, drawn under its own target prior."""
    task = tasks.get(case.task)
    for k in range(100):
        theta = priors.sample(target_of(case), 1, case.seed + 1_000 * k + 17).float()
        x = task.simulate(theta, case.seed + 1_000 * k + 18)
        if bool(torch.isfinite(x).all()):
            return x[0]
    raise InputError(f"no finite observation for {case}")


def run_case(case: Case, posterior: Posterior, settings: DiagnoseSettings) -> dict[str, Any]:
    """One row of the table."""
    began = time.monotonic()
    row: dict[str, Any] = {"task": case.task, "regime": case.regime, "kind": case.kind, "seed": case.seed}
    x = observation_of(case)
    try:
        adapted = adapted_of(case, posterior)
    except InputError as error:  # reprior refuses: no posterior to judge
        return {**row, "method": "refused", "verdict": "refused", "why": str(error)}
    report = diagnose(adapted, x, case.seed, settings)
    row |= {"method": adapted.method, "verdict": report.verdict}
    row |= {c.name: "" if math.isnan(c.value) else f"{c.value:.6g}" for c in report.checks}
    samples = report.scenes[0].adapted
    if len(samples) >= 1_000:
        exact = tasks.get(case.task).reference(x, len(samples), case.regime, target_of(case), seed=case.seed)
        row["c2st_fast"] = f"{metrics.c2st_fast(exact, samples):.4f}"
    row |= {"seconds": f"{time.monotonic() - began:.1f}", "why": "; ".join(report.reasons)}
    return row


def run(
    folder: str | Path,
    out: str | Path,
    seed: int = EVALUATION_SEED,
    names: Sequence[str] = TASKS,
    repeats: int = 1,
    settings: DiagnoseSettings | None = None,
) -> dict[str, Any]:
    """Runs all cases that the file does not hold yet, one row each, and gives the two rates.

    Arguments:
        folder: where the base posteriors are.
        out: the CSV file.
        seed: the seed of the observations.
        names: the tasks.
        repeats: observations for each change of prior.
        settings: of the diagnosis.
    """
    one_thread()
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {(r["task"], r["regime"], r["kind"], r["seed"]) for r in read(path)}
    posterior, held = None, ("", "")
    for case in cases(seed, names, repeats):
        if case.key in done:
            continue
        if (case.task, case.regime) != held or posterior is None:
            posterior = get_base(BaseSpec(case.task, case.regime), folder, progress=False)
            held = (case.task, case.regime)
        row = run_case(case, posterior, settings or DiagnoseSettings())
        _append(path, row)
        print(*(row.get(k, "") for k in ("task", "regime", "kind", "method", "c2st_fast", "verdict", "seconds")))
    found = rates(read(path))
    print(summary(found))
    return found


def rates(rows: Sequence[dict[str, str]]) -> dict[str, Any]:
    """The two rates, with the counts behind them."""
    judged = [(float(r["c2st_fast"]), r["verdict"]) for r in rows if r["c2st_fast"]]
    high = [v for c, v in judged if c > HIGH]
    low = [v for c, v in judged if c < LOW]
    return {
        "cases": len(rows),
        "judged": len(judged),
        "high": len(high),
        "caught": sum(v != "ok" for v in high) / len(high) if high else math.nan,
        "low": len(low),
        "passed": sum(v == "ok" for v in low) / len(low) if low else math.nan,
        "refused": sum(r["verdict"] == "refused" for r in rows),
    }


def summary(found: dict[str, Any]) -> str:
    """The rates in words."""
    return (
        f"{found['cases']} cases, {found['judged']} with exact samples to compare, {found['refused']} refused\n"
        f"caution or do not trust where c2st_fast > {HIGH}: {found['caught']:.1%} of {found['high']}\n"
        f"ok where c2st_fast < {LOW}: {found['passed']:.1%} of {found['low']}"
    )


def regrade(row: dict[str, str], thresholds: Thresholds) -> str:
    """The verdict that other thresholds would give to a row: for tuning on development cases."""
    worst = "refused" if row["verdict"] == "refused" else "ok"
    from reprior.diagnostics.checks import check
    from reprior.diagnostics.verdict import VERDICTS, weight_of

    for name in MEANINGS:
        if row[name] == "" or worst == "refused":
            continue
        outcome = check(name, float(row[name]), thresholds, most=weight_of(name, row["method"])).outcome
        said = {"caution": "caution", "stop": "do not trust"}.get(outcome, "ok")
        worst = max(worst, said, key=VERDICTS.index)
    return worst


def read(path: str | Path) -> list[dict[str, str]]:
    """The rows of a file; none if it does not exist."""
    if not Path(path).exists():
        return []
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


def _append(path: Path, row: dict[str, Any]) -> None:
    fresh = not path.exists()
    with open(path, "a", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, restval="")
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m reprior.benchmark.verdicts", description="Measure the verdict.")
    parser.add_argument("bases", help="the folder of base posteriors")
    parser.add_argument("out", help="the CSV file; rows that it holds are not run again")
    parser.add_argument("--seed", type=int, default=EVALUATION_SEED, help="seed of the observations")
    parser.add_argument("--tasks", default=",".join(TASKS), help="tasks, separated by commas")
    parser.add_argument("--repeats", type=int, default=1, help="observations for each change of prior")
    options = parser.parse_args(arguments)
    run(options.bases, options.out, options.seed, options.tasks.split(","), options.repeats)


if __name__ == "__main__":
    main()
