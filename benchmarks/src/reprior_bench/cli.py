"""`reprior bench`: the measurements behind the docs, each a command."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from reprior_bench.cli_grid import TASKS, evidence, figures, report, run, table

app = typer.Typer(help="Measure: bases, samplers, noise, speed, methods, verdicts.", no_args_is_help=True)
console = Console()

Results = Annotated[Path, typer.Option("--out", help="Folder for the results.")]
Bases = Annotated[Path, typer.Option(help="Folder of the base posteriors (trained where missing).")]


def show(rows: list[dict[str, Any]], title: str) -> None:
    """Prints rows as a table."""
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()))
    console.print(table)


@app.command()
def bases(
    task: Annotated[list[str], typer.Option(help="Tasks.")] = TASKS,
    regime: Annotated[list[str], typer.Option(help="Regimes.")] = ["id", "ood"],
    network: Annotated[str, typer.Option(help="mlp or simformer.")] = "mlp",
    preset: Annotated[str, typer.Option(help="best or paper.")] = "best",
    folder: Bases = Path("results/bases"),
    out: Results = Path("results"),
) -> None:
    """Train the bases that are missing and measure them against the exact posterior under p."""
    from reprior_bench.base_quality import base_quality, collect
    from reprior_bench.bases import BaseSpec

    specs = [BaseSpec(t, r, network, preset) for t in task for r in regime]
    rows = collect(base_quality(specs, folder), out / f"bases-{network}-{preset}.csv")
    show(rows, "Base posteriors: c2st_fast against the exact p-posterior")


@app.command()
def samplers(
    task: Annotated[str, typer.Option(help="Task.")] = "two_moons",
    regime: Annotated[str, typer.Option(help="Regime.")] = "id",
    folder: Bases = Path("results/bases"),
    out: Results = Path("results"),
) -> None:
    """Error against the number of evaluations, for each kind of sampler."""
    from reprior_bench.base_quality import collect
    from reprior_bench.base_quality import samplers as jobs

    show(collect(jobs(task, regime, folder), out / "samplers.csv"), f"Samplers on {task} ({regime})")


@app.command()
def noise(
    steps: Annotated[int, typer.Option(help="Training steps of each.")] = 3_000,
    out: Results = Path("results"),
) -> None:
    """What scalar, diagonal and full noise cost in base quality and training time."""
    from reprior_bench.base_quality import collect, noise_kinds

    show(collect(noise_kinds(steps), out / "noise.csv"), "Kinds of noise")


@app.command()
def speed(
    part: Annotated[list[str], typer.Option(help="encoding, sampling, training, change, memory.")] = [
        "encoding",
        "sampling",
        "training",
        "change",
        "memory",
    ],
    folder: Bases = Path("results/bases"),
    out: Results = Path("results"),
    threads: Annotated[int, typer.Option(help="Torch threads.")] = 1,
) -> None:
    """Speed, as ratios from one run."""
    import torch

    from reprior_bench.speed import measure
    from reprior.io import read_rows, write_rows

    torch.set_num_threads(threads)
    names: tuple[str, ...] = ("what", "reprior", "alternative", "ratio and goal")
    rows: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in measure(folder, part)]
    show(rows, f"Speed, {threads} torch thread(s)")
    again = {row["what"] for row in rows}
    write_rows([*(r for r in read_rows(out / "speed.csv") if r["what"] not in again), *rows], out / "speed.csv")


@app.command()
def sbi(
    quick: Annotated[bool, typer.Option(help="A small run, to see that it works.")] = False,
    folder: Annotated[Path, typer.Option(help="Folder of the NPSE posteriors (trained where missing).")] = Path(
        "results/bases"
    ),
    out: Results = Path("results"),
    threads: Annotated[int, typer.Option(help="Torch threads.")] = 1,
) -> None:
    """sbi's own prior_guide and reprior, on the same NPSE posteriors, against exact posteriors."""
    import torch

    from reprior_bench.sbi_comparison import run, summary

    torch.set_num_threads(threads)
    rows = run(out, folder, quick)
    show(summary(rows), f"Errors of mean and sd, c2st_fast, CPU seconds to adapt and draw; {rows[0].steps} steps")


@app.command()
def verdicts(
    task: Annotated[list[str], typer.Option(help="Tasks.")] = TASKS,
    seed: Annotated[int, typer.Option(help="Seed of the observations; 30000 is for tuning thresholds.")] = 20_000,
    folder: Bases = Path("results/bases"),
    out: Results = Path("results"),
) -> None:
    """How often the verdict of `diagnose` is right, against exact posteriors; a killed run goes on where it stopped."""
    from reprior_bench.verdicts import by_kind, read, run, summary

    path = out / "verdicts.csv"
    found = run(folder, path, seed, task, say=lambda line: console.print(line, markup=False))
    show(by_kind(read(path, seed, task)), "Verdicts by kind of case")
    console.print(summary(found))


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
    workers: Annotated[int, typer.Option(help="Processes, one torch thread each.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of theta and the observations.")] = 20_000,
    folder: Bases = Path("results/bases"),
    out: Results = Path("results"),
) -> None:
    """Error against the number of observations, for sequential updates; a killed run goes on where it stopped."""
    from reprior_bench.runner import local_executor, run_grid
    from reprior_bench.sequential import SequentialCell, figure, summarise
    from reprior.io import write_rows

    cells = [SequentialCell(t, m, i, observations, seed=seed) for m in method for i in range(truths) for t in task]
    errors = run_grid(cells, out, folder, partial(local_executor, workers), console)
    done = sorted((out / "sequential").glob(f"*-{observations}-seed{seed}.json"))
    rows = summarise(done)
    if rows:
        show([row for row in rows if row["n"] in (1, 2, 5, observations)], "Sequential updates: mean over theta")
        write_rows(rows, out / "sequential.csv")
        figure(rows, out / "figures" / "sequential.png")
    report(errors)


for command in (run, table, figures, evidence):
    app.command()(command)
