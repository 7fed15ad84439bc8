"""Is the verdict right? It is measured on cases from no change to a hopeless one, against exact posteriors.

The cases are those of `reprior_bench.verdict_cases`. The adapted samples that a report looks at are compared with
exact ones by `c2st_fast`, which the report does not know. Two rates follow:

    caught   the fraction of cases above 0.60 where the verdict is "caution" or "do not trust"
    passed   the fraction of cases below 0.56 where it is "ok"

Thresholds may be tuned on cases of the development seed only; rates are reported on the evaluation seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import reprior
from reprior.diffusion.sampler import Sampler
from reprior.errors import InputError
from reprior_bench import EVALUATION_SEED, metrics, tasks
from reprior_bench.bases import BaseSpec, get_base
from reprior_bench.job import Job
from reprior_bench.store import Record, Table
from reprior_bench.tasks import BENCHMARK
from reprior_bench.verdict_cases import KINDS, PLAN, Case, adapted_of, observation_of, target_of

__all__ = ["VerdictJob", "by_kind", "jobs", "rates", "rows_of", "summary"]

HIGH, LOW = 0.60, 0.56
VERDICTS = ("ok", "caution", "do not trust", "refused")
SAMPLER = Sampler(steps=20)
FEWEST = 1_000  # adapted samples, for a comparison with exact ones


@dataclass(frozen=True)
class VerdictJob(Case, Job):
    """The verdict on one case; attributes as in `Case`."""

    part = "verdicts"

    @property
    def base(self) -> BaseSpec:
        return BaseSpec(self.task, self.regime)

    def measure(self, bases: Path, cache: Path) -> dict[str, Any]:
        posterior, x = get_base(self.base, bases), observation_of(self)
        try:
            adapted = adapted_of(self, posterior)
        except InputError as error:  # reprior refuses: there is no posterior to judge
            return {"method": "refused", "verdict": "refused", "why": str(error)}
        report = reprior.diagnose(replace(adapted, sampler=SAMPLER), x, seed=self.seed)
        found: dict[str, Any] = {"method": adapted.method.name, "verdict": report.verdict}
        samples = report.scenes[0].adapted
        if len(samples) >= FEWEST:
            exact = tasks.get(self.task).reference(x, len(samples), self.regime, target_of(self), seed=self.seed)
            found["c2st_fast"] = metrics.c2st_fast(exact, samples)
        found["checks"] = {c.name: float(f"{c.value:.6g}") for c in report.checks if not math.isnan(c.value)}
        return found | {"why": "; ".join(report.reasons)}


def jobs(seed: int = EVALUATION_SEED, names: Sequence[str] = BENCHMARK) -> Iterator[VerdictJob]:
    """All cases of some tasks, as in `PLAN`: kind by kind, so that a part of them spans the tasks."""
    for kind in KINDS:
        for name in names:
            for regime, kinds in PLAN.items():
                if kind in kinds:
                    yield VerdictJob(name, regime, kind, seed)


def rows_of(folder: str | Path, seed: int = EVALUATION_SEED, names: Sequence[str] = BENCHMARK) -> list[Record]:
    """The records of a seed and of some tasks.

    Arguments:
        folder: where the table of records is.
        seed: the seed of the observations.
        names: the tasks.
    """
    records = Table(folder, VerdictJob.part).records().values()
    return [r for r in records if r["job"]["seed"] == seed and r["job"]["task"] in names]


def rates(rows: Sequence[Record]) -> dict[str, Any]:
    """The two rates, with the counts behind them."""
    judged = [(row["c2st_fast"], row["verdict"]) for row in rows if "c2st_fast" in row]
    high = [verdict for c2st, verdict in judged if c2st > HIGH]
    low = [verdict for c2st, verdict in judged if c2st < LOW]
    return {
        "cases": len(rows),
        "judged": len(judged),
        "high": len(high),
        "caught": sum(verdict != "ok" for verdict in high) / len(high) if high else math.nan,
        "low": len(low),
        "passed": sum(verdict == "ok" for verdict in low) / len(low) if low else math.nan,
        "refused": sum(row["verdict"] == "refused" for row in rows),
    }


def summary(found: dict[str, Any]) -> str:
    """The rates in words."""
    return (
        f"{found['cases']} cases, {found['judged']} with exact samples to compare, {found['refused']} refused\n"
        f"caution or do not trust where c2st_fast > {HIGH}: {found['caught']:.1%} of {found['high']}\n"
        f"ok where c2st_fast < {LOW}: {found['passed']:.1%} of {found['low']}"
    )


def by_kind(rows: Sequence[Record]) -> list[dict[str, Any]]:
    """For each kind of case: what c2st_fast was, and how often each verdict was given."""
    out = []
    for kind, told in KINDS.items():
        mine = [row for row in rows if row["job"]["kind"] == kind]
        if mine:
            scores = sorted(row["c2st_fast"] for row in mine if "c2st_fast" in row)
            span = f"{scores[0]:.2f} to {scores[-1]:.2f}" if scores else "-"
            counts = {verdict: sum(row["verdict"] == verdict for row in mine) for verdict in VERDICTS}
            out.append({"kind": kind, "what": told, "cases": len(mine), "c2st_fast": span, **counts})
    return out
