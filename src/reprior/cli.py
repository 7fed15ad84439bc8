"""The `reprior` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from reprior._version import __version__
from reprior_bench.cli import app as bench_app
from reprior_transits.cli import app as lightcurve_app

app = typer.Typer(
    help="Change the prior of a trained simulation-based posterior, with no new simulations.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(bench_app, name="bench")
app.add_typer(lightcurve_app, name="lightcurve")
console = Console()

Threads = Annotated[int, typer.Option(help="Torch threads; more than one is slower on busy cores.")]


def _version(show: bool) -> None:
    if show:
        typer.echo(f"reprior {__version__}")
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Change the prior of a trained simulation-based posterior, with no new simulations."""


def _threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)


@app.command()
def tasks() -> None:
    """List the benchmark tasks: dimensions, priors of both regimes, and what their reference posterior is."""
    from reprior import tasks as registry
    from reprior_bench.tasks.describe import describe_prior

    table = Table(title="Tasks (regimes: id, ood)", show_lines=True)
    for column in ("task", "theta", "x", "reference posterior"):
        table.add_column(column)
    changes = Table(title="Prior p and target prior q", show_lines=True)
    for column in ("task", "regime", "p", "q"):
        changes.add_column(column, no_wrap=column in ("task", "regime"))
    for name in registry.names():
        task = registry.get(name)
        parameters = f"{task.dim}: {', '.join(task.parameters)}"
        table.add_row(name, parameters, str(task.x_dim), task.reference_kind)
        for regime in task.regimes:
            p, q = task.training_prior(regime), task.target_prior(regime)
            changes.add_row(name, regime, describe_prior(p), describe_prior(q))
    console.print(table)
    console.print(changes)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture and the report.")] = Path("out"),
    threads: Threads = 1,
) -> None:
    """Simulate, train, change the prior, sample, compare with the exact posterior; about two minutes."""
    _threads(threads)
    from reprior.demo import draw_picture, run_demo

    result = run_demo()
    table = Table(title="Ornstein-Uhlenbeck process, new prior")
    names = result.posterior.parameters
    for column in ("posterior", names[0], names[1], "C2ST against exact"):
        table.add_column(column)
    for row in result.rows:
        table.add_row(*row)
    console.print(table)
    for part, seconds in result.seconds.items():
        console.print(f"{part}: {seconds:.1f} s")
    typer.echo(str(result.info))
    picture = draw_picture(result, out / "demo.png")
    console.print(f"picture: {picture}")
    from reprior.diagnostics import diagnose

    found = diagnose(result.adapted, x=result.x)
    typer.echo(str(found))
    console.print(f"report: {found.to_html(out / 'report.html')}")


@app.command()
def report(
    adapted: Annotated[Path, typer.Argument(help="The file that AdaptedPosterior.save wrote.")],
    x: Annotated[
        Path | None, typer.Option(help="The observation: a .npy or text file; typical ones if left out.")
    ] = None,
    simulations: Annotated[Path | None, typer.Option(help="Stored simulations, if saved apart.")] = None,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    threads: Threads = 1,
) -> None:
    """Diagnose an adapted posterior: ok, caution or do not trust, with the reasons, as text and as one HTML file."""
    _threads(threads)
    from reprior.diagnostics import run_report

    found = run_report(adapted, x, out, seed=seed, simulations=simulations)
    typer.echo(str(found))
    console.print(f"report: {out if out.suffix else out.with_suffix('.html')}")


def run() -> None:
    """The entry point: errors that reprior raises on purpose are shown as one line, without a traceback."""
    from reprior.errors import RepriorError

    try:
        app()
    except (RepriorError, FileNotFoundError) as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False)
        raise SystemExit(2) from error
