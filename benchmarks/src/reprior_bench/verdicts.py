"""Is the verdict right? It is measured on cases from no change to a hopeless one, against exact posteriors.

The cases are those of `reprior_bench.verdict_cases`. The adapted samples that a report looks at are compared with
exact ones by `c2st_fast`, which the report does not know. Two rates follow:

    caught   the share of cases above 0.60 where the verdict is "caution" or "do not trust"
    passed   the share of cases below 0.56 where it is "ok"

Thresholds may be tuned on cases of the development seed only; rates are reported on the evaluation seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reprior_bench import metrics
from reprior_bench import tasks
from reprior_bench import EVALUATION_SEED
from reprior_bench.bases import BaseSpec, get_base, one_thread
from reprior_bench.verdict_cases import KINDS, TASKS, Case, adapted_of, cases, observation_of, target_of
from reprior.diagnostics import DiagnoseSettings, Thresholds, diagnose
from reprior.diagnostics.checks import MEANINGS, check
from reprior.diagnostics.verdict import VERDICTS, weight_of
from reprior.diffusion.sampler import Sampler
from reprior.errors import InputError
from reprior.posterior import Posterior
from reprior.io import read_rows, write_rows

__all__ = ["by_kind", "rates", "read", "regrade", "run", "run_case", "summary"]

HIGH, LOW = 0.60, 0.56
SAMPLER = Sampler(steps=20)
LEAST = 1_000  # adapted samples, for a comparison with exact ones
COLUMNS = ("task", "regime", "kind", "seed", "method", "verdict", "c2st_fast", "seconds", *MEANINGS, "why")


def run_case(case: Case, posterior: Posterior, settings: DiagnoseSettings) -> dict[str, Any]:
    """One row of the table.

    Arguments:
        case: the case.
        posterior: its base, with the simulations.
        settings: of the diagnosis.
    """
    began = time.process_time()
    row: dict[str, Any] = {"task": case.task, "regime": case.regime, "kind": case.kind, "seed": case.seed}
    x = observation_of(case)
    try:
        adapted = adapted_of(case, posterior)
    except InputError as error:  # reprior refuses: no posterior to judge
        return {**row, "method": "refused", "verdict": "refused", "why": str(error)}
    report = diagnose(replace(adapted, sampler=SAMPLER), x, case.seed, settings)
    row |= {"method": adapted.method, "verdict": report.verdict}
    row |= {c.name: "" if math.isnan(c.value) else f"{c.value:.6g}" for c in report.checks}
    samples = report.scenes[0].adapted
    if len(samples) >= LEAST:
        exact = tasks.get(case.task).reference(x, len(samples), case.regime, target_of(case), seed=case.seed)
        row["c2st_fast"] = f"{metrics.c2st_fast(exact, samples):.4f}"
    row |= {"seconds": f"{time.process_time() - began:.1f}", "why": "; ".join(report.reasons)}
    return row


def run(
    folder: str | Path,
    out: str | Path,
    seed: int = EVALUATION_SEED,
    names: Sequence[str] = TASKS,
    settings: DiagnoseSettings | None = None,
    say: Callable[[str], Any] = print,
) -> dict[str, Any]:
    """Runs all cases that the file does not hold yet, one row each, and gives the two rates.

    Arguments:
        folder: where the base posteriors are.
        out: the CSV file.
        seed: the seed of the observations.
        names: the tasks.
        settings: of the diagnosis.
        say: what each line of progress is given to.
    """
    one_thread()
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    planned = list(cases(seed, names))
    done = {(r["task"], r["regime"], r["kind"], r["seed"]) for r in read_rows(path)}
    todo = [case for case in planned if case.key not in done]
    say(f"{len(planned)} cases, {len(planned) - len(todo)} done before")
    began = time.monotonic()
    for k, case in enumerate(todo, start=1):
        posterior = get_base(BaseSpec(case.task, case.regime), folder, progress=False)
        row = run_case(case, posterior, settings or DiagnoseSettings())
        _append(path, row)
        left = (time.monotonic() - began) / k * (len(todo) - k) / 60
        found = f"{row['method']}, c2st_fast {row.get('c2st_fast', '-')}: {row['verdict']}"
        say(f"[{k}/{len(todo)}] {case.task} {case.regime} {case.kind}: {found}  about {left:.0f} min left")
    return rates(read(path, seed, names))


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


def by_kind(rows: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """For each kind of case: what c2st_fast was, and how often each verdict was given."""
    out = []
    for kind, told in KINDS.items():
        mine = [r for r in rows if r["kind"] == kind]
        if not mine:
            continue
        scores = sorted(float(r["c2st_fast"]) for r in mine if r["c2st_fast"])
        span = f"{scores[0]:.2f} to {scores[-1]:.2f}" if scores else "-"
        counts = {verdict: sum(r["verdict"] == verdict for r in mine) for verdict in (*VERDICTS, "refused")}
        out.append({"kind": kind, "what": told, "cases": len(mine), "c2st_fast": span, **counts})
    return out


def regrade(row: dict[str, str], thresholds: Thresholds) -> str:
    """The verdict that other thresholds would give to a row: for tuning on development cases."""
    worst = "refused" if row["verdict"] == "refused" else "ok"
    for name in MEANINGS:
        if row[name] == "" or worst == "refused":
            continue
        outcome = check(name, float(row[name]), thresholds, most=weight_of(name, row["method"])).outcome
        said = {"caution": "caution", "stop": "do not trust"}.get(outcome, "ok")
        worst = max(worst, said, key=VERDICTS.index)
    return worst


def read(path: str | Path, seed: int = EVALUATION_SEED, names: Sequence[str] = TASKS) -> list[dict[str, str]]:
    """The rows of a file that are of a seed and of some tasks; none if it does not exist."""
    return [r for r in read_rows(path) if r["seed"] == str(seed) and r["task"] in names]


def _append(path: Path, row: dict[str, Any]) -> None:
    write_rows([*read_rows(path), {column: row.get(column, "") for column in COLUMNS}], path)
