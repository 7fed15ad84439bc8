"""`reprior-transits`: from photometry to the posterior after each transit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from reprior.errors import RepriorError
from reprior_transits.targets import TARGETS
from reprior_transits.targets import target as find

if TYPE_CHECKING:
    from reprior_transits.targets import Target
    from reprior_transits.windows import Photometry

app = typer.Typer(
    help="Transit light curves: the posterior after each transit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()


TargetName = Annotated[str, typer.Option(help="A built-in target: wasp-39, wasp-126 or gj-436.")]
Data = Annotated[
    Path | None, typer.Option(help="Its light curve, CSV or FITS; downloaded with lightkurve if left out.")
]
Folder = Annotated[
    Path, typer.Option(help="Folder of the studies, one folder a target: results, and what a stopped run goes on from.")
]
Seed = Annotated[int, typer.Option(help="Seed.")]
Threads = Annotated[int, typer.Option(help="Torch threads; more than one is slower on busy cores.")]


@app.command()
def targets() -> None:
    """List the built-in targets with their published values."""
    table = Table(title="Targets")
    for column in ("name", "planet", "k", "a/Rs", "inc (deg)", "P (d)", "source"):
        table.add_column(column)
    for name, one in TARGETS.items():
        values = (f"{v:.6g}" for v in one.reference.theta)
        table.add_row(name, one.planet, *values, one.reference.source)
    console.print(table)


@app.command()
def run(
    target: TargetName,
    data: Data = None,
    folder: Folder = Path("transits"),
    bases: Annotated[
        Path | None, typer.Option(help="Folder of base models (trained where missing); FOLDER/bases if left out.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Posterior samples after each transit.")] = 5_000,
    competitor: Annotated[
        list[str], typer.Option(help="Run beside accumulate: ratio, or priorguide_mc (which needs reprior-bench).")
    ] = [],
    exact: Annotated[
        int, typer.Option(help="Samples of the exact posterior, for comparison; 0 leaves it out.")
    ] = 1_000,
    simulations: Annotated[int, typer.Option(help="Simulations of the base.")] = 300_000,
    steps: Annotated[int, typer.Option(help="Training steps of the base.")] = 20_000,
    seed: Seed = 0,
    threads: Threads = 1,
) -> None:
    """Windows, base model, sequential update, tables, figures and report; a killed run goes on where it stopped."""
    import torch

    from reprior_transits.base import BaseSettings
    from reprior_transits.study import StudySettings, competitor_settings, run_study

    torch.set_num_threads(threads)
    known, photometry, own = _windows(target, data, folder)
    base = BaseSettings(known.windows.half_width, simulations=simulations, steps=steps, look=known.look)
    methods = competitor_settings(competitor)
    settings = StudySettings(base, competitors=methods, samples=samples, exact=exact, seed=seed)
    study = run_study(known, photometry, own, settings, bases or folder / "bases")
    typer.echo(str(study.updates))
    _show(study.files)


@app.command()
def exact(
    target: TargetName,
    data: Data = None,
    folder: Folder = Path("transits"),
    samples: Annotated[int, typer.Option(help="Samples after each transit.")] = 1_000,
    seed: Seed = 0,
    threads: Threads = 1,
) -> None:
    """The exact posterior after each transit, from the likelihood and without a base model: tables and a figure."""
    import torch

    from reprior_transits.exact_run import run_exact

    torch.set_num_threads(threads)
    _show(run_exact(*_windows(target, data, folder), samples, seed))


def _windows(target: str, data: Path | None, folder: Path) -> tuple[Target, Photometry, Path]:
    """The target, its windows and the folder of its own study."""
    known = find(target)
    photometry = known.process(known.download() if data is None else known.read(data))
    windows = photometry.windows
    console.print(f"{known.planet}: {len(windows)} windows, period {photometry.ephemeris.period:.6f} d")
    for one in windows.rejected:
        console.print(f"left out: {one.mid_time:.4f}: {one.reason}")
    return known, photometry, folder / "-".join(known.name.lower().split())


def _show(written: dict[str, Path]) -> None:
    for name, path in written.items():
        console.print(f"{name}: {path}", soft_wrap=True)


def main() -> None:
    """The entry point: errors that are raised on purpose are shown as one line, without a traceback."""
    try:
        app()
    except (RepriorError, FileNotFoundError) as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False)
        raise SystemExit(2) from error
