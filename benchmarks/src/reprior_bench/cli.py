"""`reprior-bench`: the measurements behind the docs, each a command.

What a command measures is kept as it goes in one table of records for each part (`reprior_bench.store`); a run that was
killed goes on with the same command.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table as Shown

from reprior.errors import RepriorError
from reprior.io import read_rows, write_rows
from reprior_bench import EVALUATION_SEED
from reprior_bench.tasks import BENCHMARK, REGIMES

app = typer.Typer(
    help="Measure: methods, verdicts, sequential updates, bases, samplers, speed.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
console = Console()

CHECKOUT = Path(__file__).parents[2] / "results"
RESULTS = CHECKOUT if CHECKOUT.is_dir() else Path("results")  # of the checkout; of this folder for an installed wheel
TASKS = list(BENCHMARK)
Out = Annotated[Path, typer.Option("--out", help="Folder of the records.")]
Bases = Annotated[Path, typer.Option(help="Folder of the base posteriors (trained where missing).")]
Seed = Annotated[int, typer.Option(help="Seed of the observations; 30000 is for tuning, 20000 made the first figures.")]
Page = Annotated[Path | None, typer.Option(help="A Markdown page whose tables are to be filled in.")]
Workers = Annotated[int, typer.Option(help="Processes, one torch thread each.")]
Scheduler = Annotated[str, typer.Option(help="Address of a Dask scheduler, in place of processes here.")]


@app.command()
def tasks() -> None:
    """List the tasks: dimensions, priors of both regimes, and what their reference posterior is."""
    from reprior_bench import tasks as registry
    from reprior_bench.tasks.describe import describe_prior

    found, changes = [], []
    for name in registry.names():
        task = registry.get(name)
        theta = f"{task.dim}: {', '.join(task.parameters)}"
        found.append({"task": name, "theta": theta, "x": task.x_dim, "reference posterior": task.reference_kind})
        for regime in REGIMES:
            p, q = task.training_prior(regime), task.target_prior(regime)
            changes.append({"task": name, "regime": regime, "p": describe_prior(p), "q": describe_prior(q)})
    show(found, "Tasks (regimes: id, ood)")
    show(changes, "Prior p and target prior q")


@app.command()
def run(
    task: Annotated[list[str], typer.Option(help="Tasks.")] = TASKS,
    regime: Annotated[list[str], typer.Option(help="Regimes.")] = list(REGIMES),
    method: Annotated[list[str], typer.Option(help="Methods (base: no change); all of the preset's if left out.")] = [],
    preset: Annotated[
        str, typer.Option(help="best (the library's defaults), paper, or quick (to try it out).")
    ] = "best",
    part: Annotated[list[str], typer.Option(help="posterior; predictive (series, Simformer base).")] = [
        "posterior",
        "predictive",
    ],
    observations: Annotated[int | None, typer.Option(help="Observations per job; 10 (quick: 1).")] = None,
    runs: Annotated[int | None, typer.Option(help="Runs per method; 3 (quick: 1).")] = None,
    samples: Annotated[int | None, typer.Option(help="Samples per observation; 5000 (quick: 500).")] = None,
    seed: Seed = EVALUATION_SEED,
    forest: Annotated[bool, typer.Option(help="Measure the random-forest C2ST, which takes most of the time.")] = True,
    workers: Workers = 2,
    scheduler: Scheduler = "",
    bases: Annotated[Path | None, typer.Option(help="Folder of the bases (trained where missing).")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the records; the results (quick: out/quick).")] = None,
) -> None:
    """Run what is not done of methods on tasks, and show the tables of this seed."""
    from reprior_bench.plan import plan

    jobs = plan(preset, task, regime, method, part, observations, runs, samples, seed, forest)
    out = out or (Path("out/quick") if preset == "quick" else RESULTS)
    bases = bases or (out if preset == "quick" else RESULTS) / "bases"
    errors = _run(jobs, out, bases, workers, scheduler)
    _show_tables(out, None, seed)
    _report(errors)


@app.command()
def table(out: Out = RESULTS, page: Page = None, seed: Seed = EVALUATION_SEED) -> None:
    """Show every table beside the paper's numbers; write them to a folder of the seed."""
    if not _show_tables(out, page, seed):
        raise typer.Exit(1)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="Folder of records, of one version.")],
    after: Annotated[Path, typer.Argument(help="Folder of records, of another version.")],
    seed: Annotated[int, typer.Option(help="Seed of the observations.")] = 30_000,
) -> None:
    """Compare two versions: c2st_fast of every method that both have run, paired by observation."""
    from reprior_bench.compare import compare as compared

    show(compared(before, after, seed), f"C2ST (boosted trees): {before} and {after}, seed {seed}")


@app.command()
def figures(
    corner: Annotated[list[str], typer.Option(help="Tasks to draw a corner plot of.")] = TASKS,
    regime: Annotated[str, typer.Option(help="Regime of the corner plots.")] = "ood",
    seed: Seed = EVALUATION_SEED,
    bases: Bases = RESULTS / "bases",
    out: Out = RESULTS,
) -> None:
    """Draw C2ST by task and regime, predictive bands, and corner plots of auto over the exact posterior."""
    import matplotlib
    import torch

    from reprior_bench.bases import BaseSpec
    from reprior_bench.figures import draw_bands, draw_c2st, draw_corner
    from reprior_bench.tables import summarise

    matplotlib.use("Agg")
    torch.set_num_threads(1)
    folder = of_seed(out, seed) / "figures"
    paths = [draw_c2st(summarise(out, seed), folder), *draw_bands(out, folder, seed)]
    for name in corner:
        if BaseSpec(name, regime).path(bases).exists():
            paths.append(draw_corner(name, regime, folder, bases, out / "cache", seed))
        else:
            console.print(f"no corner plot of {name}: there is no base for it in {bases}")
    for path in paths:
        if path is not None:
            console.print(f"written: {path}")


@app.command()
def evidence(
    case: Annotated[list[str], typer.Option(help="Cases; all if left out.")] = [],
    observations: Annotated[int, typer.Option(help="Observations per case.")] = 10,
    seed: Seed = EVALUATION_SEED,
    workers: Workers = 2,
    scheduler: Scheduler = "",
    out: Out = RESULTS,
    page: Page = None,
) -> None:
    """Compute, from exact references, the figures of the paper that its stated settings do not give."""
    from reprior_bench.evidence import evidence_jobs, evidence_rows
    from reprior_bench.markdown import evidence_table, fill

    errors = _run(evidence_jobs(observations, case, seed), out, out / "bases", workers, scheduler)
    rows, folder = evidence_rows(out, seed), of_seed(out, seed)
    if rows:
        write_rows(rows, folder / "evidence.csv", digits=4)
        path = evidence_table(rows, folder / "tables")
        console.print(Markdown(path.read_text()))
        if page is not None:
            console.print(f"filled into {page}: {', '.join(fill(page, folder / 'tables'))}")
    _report(errors)


@app.command()
def verdicts(
    task: Annotated[list[str], typer.Option(help="Tasks.")] = TASKS,
    seed: Seed = EVALUATION_SEED,
    workers: Workers = 2,
    scheduler: Scheduler = "",
    bases: Bases = RESULTS / "bases",
    out: Out = RESULTS,
) -> None:
    """Measure how often the verdict of `diagnose` is right, against exact posteriors."""
    from reprior_bench.verdicts import by_kind, jobs, rates, rows_of, summary

    errors = _run(list(jobs(seed, task)), out, bases, workers, scheduler)
    rows = rows_of(out, seed, task)
    show(by_kind(rows), "Verdicts by kind of case")
    console.print(summary(rates(rows)))
    _report(errors)


@app.command()
def sequential(
    task: Annotated[list[str], typer.Option(help="gaussian_linear, oup.")] = ["gaussian_linear", "oup"],
    method: Annotated[list[str], typer.Option(help="Methods of reprior.update.")] = [
        "accumulate",
        "ratio",
        "priorguide_mc",
    ],
    truths: Annotated[int, typer.Option(help="Number of theta, drawn from the training prior.")] = 3,
    observations: Annotated[int, typer.Option(help="Observations of each.")] = 10,
    seed: Seed = EVALUATION_SEED,
    workers: Workers = 2,
    scheduler: Scheduler = "",
    bases: Bases = RESULTS / "bases",
    out: Out = RESULTS,
) -> None:
    """Measure how the error of sequential updates grows with the number of observations."""
    from reprior_bench.sequential import SequentialJob, draw, summarise

    jobs = [SequentialJob(t, m, i, observations, seed=seed) for m in method for i in range(truths) for t in task]
    errors = _run(jobs, out, bases, workers, scheduler)
    rows = summarise(out, observations, seed)
    if rows:
        show([row for row in rows if row["n"] in (1, 2, 5, observations)], "Sequential updates: mean over theta")
        write_rows(rows, of_seed(out, seed) / "sequential.csv")
        draw(rows, of_seed(out, seed) / "figures" / "sequential.png")
    _report(errors)


@app.command()
def bases(
    network: Annotated[str, typer.Option(help="mlp or simformer.")] = "mlp",
    preset: Annotated[str, typer.Option(help="best or paper.")] = "best",
    workers: Workers = 2,
    folder: Annotated[Path, typer.Option("--bases", help="Folder of the bases.")] = RESULTS / "bases",
    out: Out = RESULTS,
) -> None:
    """Train the bases that are missing, and measure them against the exact posterior under p."""
    from reprior_bench.base_quality import base_jobs

    _measure(base_jobs(network, preset), out, folder, workers, "Base posteriors against the exact p-posterior")


@app.command()
def samplers(workers: Workers = 2, bases: Bases = RESULTS / "bases", out: Out = RESULTS) -> None:
    """Measure error against the number of evaluations, for each kind of sampler, on Two Moons ID."""
    from reprior_bench.base_quality import sampler_jobs

    _measure(sampler_jobs(), out, bases, workers, "Samplers on Two Moons ID")


@app.command()
def noise(workers: Workers = 2, out: Out = RESULTS) -> None:
    """Measure what scalar, diagonal and full noise cost in base quality and training time."""
    from reprior_bench.base_quality import noise_jobs

    _measure(noise_jobs(), out, out / "bases", workers, "Kinds of noise")


@app.command()
def sbi(
    seed: Seed = EVALUATION_SEED, workers: Workers = 1, bases: Bases = RESULTS / "bases", out: Out = RESULTS
) -> None:
    """Compare sbi's own prior_guide and reprior on the same NPSE posteriors, against exact posteriors."""
    from reprior_bench.sbi_comparison import jobs, summary
    from reprior_bench.store import Table

    planned = jobs(seed)
    errors = _run(planned, out, bases, workers, "")
    known = Table(out, planned[0].part).records()
    rows = summary([known[job.name] for job in planned if job.name in known])
    show(rows, "Errors of mean and sd, c2st_fast, CPU seconds to adapt and draw; 100 steps")
    _report(errors)


@app.command()
def few(
    cell: Annotated[list[str] | None, typer.Option(help="problem:n:m, as linear:300:100; all if left out.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each cell.")] = 1,
    out: Out = RESULTS,
) -> None:
    """Few simulations and wide x: do intervals of `reprior.train`, with its defaults, hold the truth?"""
    from reprior_bench.few import measure_cells

    rows = []
    for row in measure_cells(out / "few.csv", cell or [], seeds):
        rows.append(row)
        _tell(", ".join(f"{name} {value}" for name, value in row.items()))
    show(rows, "Few simulations and wide x")


@app.command()
def speed(
    part: Annotated[list[str], typer.Option(help="encoding, sampling, training, change, memory.")] = [
        "encoding",
        "sampling",
        "training",
        "change",
        "memory",
    ],
    bases: Bases = RESULTS / "bases",
    out: Out = RESULTS,
) -> None:
    """Measure speed, as ratios from one run of one thread."""
    import torch

    from reprior_bench.speed import measure

    torch.set_num_threads(1)
    rows = measure(bases, part)
    show(rows, "Speed, one torch thread")
    again = {row["what"] for row in rows}
    write_rows([*(r for r in read_rows(out / "speed.csv") if r["what"] not in again), *rows], out / "speed.csv")


def of_seed(out: Path, seed: int) -> Path:
    """Where tables and figures that are made of the records of one seed go."""
    return out / f"seed{seed}"


def show(rows: Sequence[dict[str, Any]], title: str) -> None:
    """Prints rows as a table."""
    if not rows:
        return
    shown = Shown(title=title)
    for column in rows[0]:
        shown.add_column(column)
    for row in rows:
        shown.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()))
    console.print(shown)


def _run(jobs: Sequence[Any], out: Path, bases: Path, workers: int, scheduler: str) -> dict[str, str]:
    from reprior_bench import runner

    pool = partial(runner.cluster, scheduler) if scheduler else partial(runner.local, workers)
    try:
        return runner.run(jobs, out, bases, pool, _tell)
    except KeyboardInterrupt:
        _tell("stopped; what is done is kept, and the same command goes on from here")
        raise typer.Exit(130) from None


def _measure(jobs: Sequence[Any], out: Path, bases: Path, workers: int, title: str) -> None:
    """Runs jobs whose records have one row each, and shows these rows."""
    from reprior_bench.store import Table

    errors = _run(jobs, out, bases, workers, "")
    known = Table(out, jobs[0].part).records()
    left_out = ("job", "base", "commit", "refused", "values", "seconds")
    rows = [known[job.name] for job in jobs if job.name in known]
    show([{**row["job"], **{k: v for k, v in row.items() if k not in left_out}} for row in rows], title)
    _report(errors)


def _show_tables(out: Path, page: Path | None, seed: int) -> bool:
    """Writes and shows the tables; returns whether there is anything in them."""
    from reprior_bench.markdown import fill, write_tables
    from reprior_bench.tables import refusals, summarise

    rows = summarise(out, seed)
    if not rows:
        console.print(f"no records of seed {seed} in {out}", style="red")
        return False
    folder = of_seed(out, seed)
    write_rows(rows, folder / "results.csv", digits=4)
    for path in write_tables(rows, folder / "tables", refusals(out, seed)):
        console.print(Markdown(path.read_text()))
        console.print(f"written: {path}\n")
    if page is not None:
        console.print(f"filled into {page}: {', '.join(fill(page, folder / 'tables'))}")
    return True


def _report(errors: dict[str, str]) -> None:
    """Shows the errors of a run, if any, and ends with exit code 1."""
    if not errors:
        return
    for label, error in errors.items():
        console.print(f"\n{label}\n{error}", style="red", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{len(errors)} jobs failed; the same command tries them again", style="red")
    raise typer.Exit(1)


def _tell(line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def main() -> None:
    """The entry point: errors that reprior raises on purpose are shown as one line, without a traceback."""
    try:
        app()
    except (RepriorError, FileNotFoundError) as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False)
        raise SystemExit(2) from error
