"""`reprior bench`: the measurements behind the docs, each a command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(help="Measure: bases, samplers, noise, speed, methods, verdicts.", no_args_is_help=True)
console = Console()

TASKS = ["two_moons", "slcp", "gaussian_linear", "oup", "turin"]
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
    from reprior.benchmark.base_quality import base_quality, write_rows
    from reprior.benchmark.bases import BaseSpec

    specs = [BaseSpec(t, r, network, preset) for t in task for r in regime]
    rows = base_quality(specs, folder)
    show(rows, "Base posteriors: c2st_fast against the exact p-posterior")
    write_rows(rows, out / f"bases-{network}-{preset}.csv")


@app.command()
def samplers(
    task: Annotated[str, typer.Option(help="Task.")] = "two_moons",
    regime: Annotated[str, typer.Option(help="Regime.")] = "id",
    folder: Bases = Path("results/bases"),
    out: Results = Path("results"),
) -> None:
    """Error against the number of evaluations, for each kind of sampler."""
    from reprior.benchmark.base_quality import samplers as run
    from reprior.benchmark.base_quality import write_rows

    rows = run(task, regime, folder)
    show(rows, f"Samplers on {task} ({regime})")
    write_rows(rows, out / "samplers.csv")


@app.command()
def noise(
    steps: Annotated[int, typer.Option(help="Training steps of each.")] = 3_000,
    out: Results = Path("results"),
) -> None:
    """What scalar, diagonal and full noise cost in base quality and training time."""
    from reprior.benchmark.base_quality import noise_kinds, write_rows

    rows = noise_kinds(steps)
    show(rows, "Kinds of noise")
    write_rows(rows, out / "noise.csv")


@app.command()
def speed(
    part: Annotated[list[str], typer.Option(help="encoding, sampling, training, change.")] = [
        "encoding",
        "sampling",
        "training",
        "change",
    ],
    folder: Bases = Path("results/bases"),
    out: Results = Path("results"),
    threads: Annotated[int, typer.Option(help="Torch threads.")] = 1,
) -> None:
    """Speed, as ratios from one run."""
    import torch

    from reprior.benchmark.base_quality import write_rows
    from reprior.benchmark.speed import measure

    torch.set_num_threads(threads)
    names: tuple[str, ...] = ("what", "reprior", "alternative", "ratio and goal")
    rows: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in measure(folder, part)]
    show(rows, f"Speed, {threads} torch thread(s)")
    write_rows(rows, out / "speed.csv")


@app.command()
def run(
    task: Annotated[list[str], typer.Option(help="Tasks.")] = TASKS,
    regime: Annotated[list[str], typer.Option(help="Regimes.")] = ["id", "ood"],
    method: Annotated[list[str], typer.Option(help="Methods; base is no change.")] = ["base", "auto", "nre"],
    preset: Annotated[str, typer.Option(help="best or paper.")] = "best",
    network: Annotated[str, typer.Option(help="mlp or simformer.")] = "mlp",
    observations: Annotated[int, typer.Option(help="Observations per cell.")] = 10,
    runs: Annotated[int, typer.Option(help="Runs per cell.")] = 3,
    samples: Annotated[int, typer.Option(help="Samples per observation.")] = 5_000,
    fast: Annotated[bool, typer.Option(help="Leave out the random-forest C2ST.")] = False,
    workers: Annotated[int, typer.Option(help="Processes, one torch thread each.")] = 2,
    folder: Bases = Path("results/bases"),
    out: Results = Path("results"),
) -> None:
    """Run the benchmark's cells that are not done; a killed run goes on where it stopped."""
    from reprior.benchmark.cells import Cell
    from reprior.benchmark.runner import local_executor, run_grid
    from reprior.benchmark.tables import summarise, write_csv

    cells = [
        Cell(t, r, m, preset, "simformer" if preset == "paper" else network, i, observations, samples, slow=not fast)
        for i in range(runs)
        for t in task
        for r in regime
        for m in method
        if m != "analytic" or t == "gaussian_linear"
    ]
    with local_executor(workers) as executor:
        run_grid(cells, out, folder, executor, console)
    write_csv(summarise(out), out / "results.csv")
    table_of(out)


@app.command()
def verdicts(
    task: Annotated[list[str], typer.Option(help="Tasks.")] = TASKS,
    seed: Annotated[int, typer.Option(help="Seed of the observations; 30000 is for tuning thresholds.")] = 20_000,
    folder: Bases = Path("results/bases"),
    out: Results = Path("results"),
) -> None:
    """How often the verdict of `diagnose` is right, against exact posteriors; a killed run goes on where it stopped."""
    from reprior.benchmark.verdicts import by_kind, read, run, summary

    path = out / "verdicts.csv"
    found = run(folder, path, seed, task, say=lambda line: console.print(line, markup=False))
    show(by_kind(read(path)), "Verdicts by kind of case")
    console.print(summary(found))


@app.command()
def table(out: Results = Path("results")) -> None:
    """Print the results beside the paper's."""
    table_of(out)


def table_of(out: Path) -> None:
    """Prints C2ST by task, regime and method, ours beside the paper's."""
    from reprior.benchmark.tables import paper_values, summarise, write_csv

    rows = summarise(out)
    if not rows:
        console.print(f"no finished cells in {out / 'cells'}")
        return
    write_csv(rows, out / "results.csv")
    paper = paper_values()
    table = Table(title="C2ST: mean (standard deviation) over observations; * best group")
    for column in ("task", "regime", "preset", "method", "c2st_fast", "c2st (forest)", "paper", "obs x runs", "note"):
        table.add_column(column)
    by = {(r["task"], r["regime"], r["preset"], r["method"], r["metric"]): r for r in rows}
    for key in dict.fromkeys(k[:4] for k in by):
        fast, forest = by.get((*key, "c2st_fast")), by.get((*key, "c2st"))
        theirs = paper.get((key[0], key[1], key[3], "c2st"))
        some = fast or forest
        assert some is not None
        cells = (_shown(fast), _shown(forest), "" if theirs is None else f"{theirs[0]:.2f} ({theirs[1]:.2f})")
        table.add_row(*key, *cells, f"{some['observations']} x {some['runs']}", some["note"])
    console.print(table)


def _shown(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    return f"{row['mean']:.3f} ({row['std']:.3f})" + ("*" if row["in_best_group"] else "")
