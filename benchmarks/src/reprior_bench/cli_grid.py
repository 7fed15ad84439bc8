"""The commands of the paper's benchmark: `reprior bench run` and what is made of its results."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from reprior import benchmark
from reprior_bench import EVALUATION_SEED
from reprior.errors import InputError

console = Console()

TASKS = list(benchmark.TASKS)
PARTS = ["posterior", "predictive"]
Folder = Annotated[Path, typer.Argument(help="Folder of the results.")]
Seed = Annotated[int, typer.Option(help="Seed of the observations; 30000 is for tuning.")]
Page = Annotated[Path | None, typer.Option(help="A Markdown page whose tables are to be filled in.")]


def run(
    task: Annotated[list[str], typer.Option(help="Tasks.")] = TASKS,
    regime: Annotated[list[str], typer.Option(help="Regimes.")] = ["id", "ood"],
    method: Annotated[list[str], typer.Option(help="Methods (base: no change); all of the preset's if left out.")] = [],
    preset: Annotated[str, typer.Option(help="best (this library's defaults) or paper.")] = "best",
    network: Annotated[str, typer.Option(help="Base of the posterior part of preset best: mlp or simformer.")] = "mlp",
    part: Annotated[list[str], typer.Option(help="posterior; predictive (OUP and Turin, Simformer base).")] = PARTS,
    observations: Annotated[int, typer.Option(help="Observations per cell.")] = 10,
    runs: Annotated[int, typer.Option(help="Runs per cell.")] = 3,
    samples: Annotated[int, typer.Option(help="Samples per observation.")] = 5_000,
    seed: Seed = EVALUATION_SEED,
    quick: Annotated[
        bool, typer.Option("--quick", help="The smallest version: 1 observation, 1 run, few steps.")
    ] = False,
    fast: Annotated[bool, typer.Option(help="Leave out the random-forest C2ST.")] = False,
    workers: Annotated[int, typer.Option(help="Processes, one torch thread each.")] = 2,
    scheduler: Annotated[str, typer.Option(help="Address of a Dask scheduler, instead of local processes.")] = "",
    bases: Annotated[
        Path | None, typer.Option(help="Folder of the bases, trained where missing; results/bases (out/quick/bases).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; results (out/quick).")] = None,
) -> None:
    """Run the benchmark's cells that are not done; a killed run goes on where it stopped."""
    from reprior_bench.cells import refuse_stale
    from reprior_bench.grid import Plan
    from reprior_bench.runner import cluster_executor, local_executor, run_grid

    plan = Plan(
        preset=preset,
        tasks=tuple(task),
        regimes=tuple(regime),
        methods=tuple(method),
        parts=tuple(part),
        network=network,
        observations=observations,
        runs=runs,
        samples=samples,
        seed=seed,
        slow=not fast,
    )
    plan = plan.quick() if quick else plan
    out = out or Path("out/quick" if quick else "results")
    bases = bases or Path("out/quick/bases" if quick else "results/bases")
    cells = plan.cells()
    refuse_stale(cells, out, bases)
    executor = partial(cluster_executor, scheduler) if scheduler else partial(local_executor, workers)
    try:
        errors = run_grid(cells, out, bases, executor, console)
    except KeyboardInterrupt:
        console.print("stopped; what is done is kept, and the same command goes on from here")
        raise typer.Exit(130) from None
    show_tables(out, None, seed)
    report(errors)


def table(
    out: Folder = Path("results"),
    page: Page = None,
    seed: Seed = EVALUATION_SEED,
) -> None:
    """Show every table beside the paper's numbers; write results.csv and tables/*.md (named by the seed if it is another)."""
    if not show_tables(out, page, seed):
        raise typer.Exit(1)


def show_tables(out: Path, page: Path | None, seed: int) -> bool:
    """Writes and shows the tables; returns whether there is anything in them."""
    from rich.markdown import Markdown

    from reprior_bench.markdown import fill, write_tables
    from reprior_bench.tables import refusals, summarise
    from reprior.io import write_rows

    rows: list[dict[str, Any]] = summarise(out, seed)
    if not rows:
        console.print(f"no finished cells of seed {seed} in {out / 'cells'}", style="red")
        return False
    tail = "" if seed == EVALUATION_SEED else f"-seed{seed}"
    write_rows(rows, out / f"results{tail}.csv", digits=4)
    for path in write_tables(rows, out / f"tables{tail}", refusals(out, seed)):
        console.print(Markdown(path.read_text()))
        console.print(f"written: {path}\n")
    if page is not None:
        console.print(f"filled into {page}: {', '.join(fill(page, out / f'tables{tail}'))}")
    return True


def figures(
    out: Folder = Path("results"),
    bases: Annotated[Path, typer.Option(help="Folder of the bases.")] = Path("results/bases"),
    corner: Annotated[list[str], typer.Option(help="Tasks to draw a corner plot of.")] = TASKS,
    regime: Annotated[str, typer.Option(help="Regime of the corner plots.")] = "ood",
) -> None:
    """Draw C2ST by task and regime, predictive bands, and corner plots of auto over the exact posterior."""
    import matplotlib

    from reprior_bench.bases import BaseSpec, one_thread
    from reprior_bench.figures import draw_bands, draw_c2st, draw_corner
    from reprior_bench.presets import REGIMES
    from reprior_bench.tables import summarise

    if regime not in REGIMES:
        raise InputError(f"regime {regime!r} is unknown; allowed: {', '.join(REGIMES)}")
    matplotlib.use("Agg")
    one_thread()
    paths = [draw_c2st(summarise(out), out), *draw_bands(out)]
    for name in corner:
        if BaseSpec(name, regime).path(bases).exists():
            paths.append(draw_corner(name, regime, out, bases))
        else:
            console.print(f"no corner plot of {name}: there is no base for it in {bases}")
    for path in paths:
        if path is not None:
            console.print(f"written: {path}")


def evidence(
    case: Annotated[list[str], typer.Option(help="Cases; all if left out.")] = [],
    observations: Annotated[int, typer.Option(help="Observations per case.")] = 10,
    workers: Annotated[int, typer.Option(help="Processes, one torch thread each.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results"),
    page: Page = None,
) -> None:
    """Compute, from exact references, the figures of the paper that its stated settings do not give."""
    from rich.markdown import Markdown

    from reprior_bench.evidence import evidence_cells, evidence_rows
    from reprior_bench.markdown import evidence_table, fill
    from reprior_bench.runner import local_executor, run_grid
    from reprior.io import write_rows

    cells = evidence_cells(observations, case)
    errors = run_grid(cells, out, out / "bases", partial(local_executor, workers), console)
    rows = evidence_rows(out)
    if rows:
        write_rows(rows, out / "evidence.csv", digits=4)
        path = evidence_table(rows, out / "tables")
        console.print(Markdown(path.read_text()))
        if page is not None:
            console.print(f"filled into {page}: {', '.join(fill(page, out / 'tables'))}")
    report(errors)


def report(errors: dict[str, str]) -> None:
    """Shows the errors of a run, if any, and ends with exit code 1."""
    if not errors:
        return
    for name, error in errors.items():
        console.print(f"\n{name}\n{error}", style="red", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{len(errors)} cells failed; the same command tries them again", style="red")
    raise typer.Exit(1)
