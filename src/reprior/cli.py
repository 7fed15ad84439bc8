"""The `reprior` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from reprior._version import __version__

app = typer.Typer(
    help="Change the prior of a trained simulation-based posterior, with no new simulations.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
console = Console()


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


@app.command()
def methods() -> None:
    """List the methods that `reprior.adapt` knows."""
    from reprior.methods import registered

    table = Table("method", "what it does", show_lines=True)
    for name, method in registered().items():
        table.add_row(name, method.summary)
    console.print(table)


@app.command()
def report(
    adapted: Annotated[Path, typer.Argument(help="The file that AdaptedPosterior.save wrote.")],
    x: Annotated[
        Path | None,
        typer.Option(
            help="The observation: a .npy or text file; without it, stored ones that are likely under the target prior."
        ),
    ] = None,
    simulations: Annotated[
        Path | None, typer.Option(help="Stored simulations, if they were saved in another file.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    threads: Annotated[int, typer.Option(help="Torch threads; more than one is slower on busy cores.")] = 1,
) -> None:
    """Diagnose an adapted posterior: ok, caution or do not trust, with the reasons, as text and as one HTML file."""
    import torch

    from reprior.diagnostics import run_report

    torch.set_num_threads(threads)
    found = run_report(adapted, x, out, seed=seed, simulations=simulations)
    typer.echo(str(found))
    console.print(f"report: {out if out.suffix else out.with_suffix('.html')}")


def run() -> None:
    """The entry point: errors that reprior raises itself are shown as one line, without a traceback."""
    from reprior.errors import RepriorError

    try:
        app()
    except (RepriorError, FileNotFoundError) as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False)
        raise SystemExit(2) from error
