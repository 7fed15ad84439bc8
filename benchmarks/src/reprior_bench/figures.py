"""Figures of the results: C2ST by task and regime, predictive bands, corner plots against the exact posterior."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import reprior
from reprior_bench import EVALUATION_SEED, tasks
from reprior_bench.bases import BaseSpec, get_base
from reprior_bench.markdown import METHOD_ORDER, NAMES
from reprior_bench.paper import paper_values
from reprior_bench.posterior import reference_of, run_seed
from reprior_bench.predictive import PredictiveJob, first_third
from reprior_bench.presets import EXACT
from reprior_bench.store import Record, Table
from reprior_bench.tables import UNRANKED
from reprior_bench.tasks import BENCHMARK, REGIMES, SERIES

__all__ = ["draw_bands", "draw_c2st", "draw_corner"]

# Colours that stay apart for colour-blind readers (Okabe and Ito).
PAPER_COLOUR, GREY = "#999999", "#444444"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
BAND_METHODS = (EXACT, "auto", "nre", "priorguide", "wsm", "base", "sir")
BAND_PANELS = 4
SAMPLES = 5_000  # of a corner plot


def draw_c2st(rows: list[dict[str, Any]], folder: Path) -> Path | None:
    """C2ST (forest) of every method, ours by preset beside the paper's; None if there are no rows.

    Arguments:
        rows: as `reprior_bench.tables.summarise` gives them.
        folder: where the figure goes.
    """
    import matplotlib.pyplot as plt

    ours = [r for r in rows if r["metric"] == "c2st"]
    if not ours:
        return None
    paper = {k[:3]: v for k, v in paper_values().items() if k[3] == "c2st"}
    presets = sorted({(r["preset"], r["network"]) for r in ours})
    shown = {r["method"] for r in ours} | {k[2] for k in paper}
    methods = [m for m in METHOD_ORDER if m in shown]
    figure, axes = plt.subplots(2, len(BENCHMARK), figsize=(15, 6.5), sharey=True, sharex=True, layout="constrained")
    spread = np.linspace(-0.25, 0.25, len(presets) + 1)
    for row, regime in zip(axes, REGIMES, strict=True):
        for ax, task in zip(row, BENCHMARK, strict=True):
            theirs = {m: paper[task, regime, m] for m in methods if (task, regime, m) in paper}
            _points(ax, theirs, methods, spread[0], PAPER_COLOUR, "the paper's", "s")
            for i, (preset, network) in enumerate(presets):
                mine = {
                    r["method"]: (r["mean"], r["std"])
                    for r in ours
                    if (r["task"], r["regime"], r["preset"], r["network"]) == (task, regime, preset, network)
                }
                label = f"ours, {preset} ({network})"
                _points(ax, mine, methods, spread[i + 1], COLOURS[i % len(COLOURS)], label, "o")
            ax.axhline(0.5, color=GREY, lw=0.8, ls=":")
            ax.axvline(sum(m not in UNRANKED for m in methods) - 0.5, color=GREY, lw=0.5)
            ax.set_xticks(range(len(methods)), methods, rotation=90)
            ax.set_title(f"{NAMES[task]}, {regime.upper()}", fontsize=10)
            ax.grid(axis="y", alpha=0.3)
        row[0].set_ylabel("C2ST (0.5 is perfect)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return _save(figure, folder / "c2st.png")


def draw_bands(results: Path, folder: Path, seed: int = EVALUATION_SEED) -> list[Path]:
    """Predictive bands of the records, one figure per task and regime; observation 0 of run 0.

    Arguments:
        results: where the records are.
        folder: where the figures go.
        seed: the seed of the observations.
    """
    import matplotlib.pyplot as plt

    paths, records = [], list(Table(results, PredictiveJob.part).records().values())
    for task in SERIES:
        for regime in REGIMES:
            found = _bands(records, {"task": task, "regime": regime, "run": 0, "seed": seed})
            names = [m for m in BAND_METHODS if m in found][:BAND_PANELS]
            if not names:
                continue
            figure, axes = plt.subplots(
                1, len(names), figsize=(4 * len(names), 3.2), sharey=True, squeeze=False, layout="constrained"
            )
            for i, (ax, method) in enumerate(zip(axes[0], names, strict=True)):
                row = found[method]
                low, middle, high = (np.array(v) for v in row["band"])
                x, seen = np.array(row["x"]), first_third(len(row["x"])).numpy()
                at = np.arange(1, len(x) + 1)
                colour = GREY if method == EXACT else COLOURS[(i - 1) % len(COLOURS)]
                ax.fill_between(at[~seen], low[~seen], high[~seen], color=colour, alpha=0.25, lw=0, label="95 % band")
                ax.plot(at[~seen], middle[~seen], color=colour, label="median")
                ax.plot(at[seen], x[seen], color="black", label="observed")
                ax.plot(at[~seen], x[~seen], color="black", ls="--", lw=0.9, label="as it went on")
                ax.axvline(seen.sum() + 0.5, color=GREY, lw=0.6, ls=":")
                ax.set_title(f"{method}: RMSE {row['predict_rmse']:.2f}", fontsize=10)
                ax.set_xlabel("point")
            axes[0, 0].set_ylabel(f"{NAMES[task]}, {regime.upper()}")
            axes[0, 0].legend(fontsize=7, frameon=False)
            paths.append(_save(figure, folder / f"bands-{task}-{regime}.png"))
    return paths


def draw_corner(
    task_name: str, regime: str, folder: Path, bases: Path, cache: Path, seed: int = EVALUATION_SEED
) -> Path:
    """The posterior of `auto` over the exact one, for the first observation.

    Arguments:
        task_name: the task.
        regime: "id" or "ood".
        folder: where the figure goes.
        bases: the folder of the bases.
        cache: where exact samples are kept.
        seed: the seed of the observations.
    """
    import corner
    from matplotlib.lines import Line2D

    task = tasks.get(task_name)
    theta_star, x = task.observations(regime, 10, seed=seed)
    exact = reference_of(task_name, regime, seed, 0, SAMPLES, x[0], cache)
    posterior = get_base(BaseSpec(task_name, regime), bases)
    adapted = reprior.adapt(posterior, task.target_prior(regime), seed=run_seed(0))
    theta = adapted.sample((SAMPLES,), x[0], seed=run_seed(0))
    figure, span = None, _span(np.concatenate([exact.numpy(), theta.numpy()]))
    for draws, colour in ((exact, GREY), (theta, COLOURS[1])):
        figure = corner.corner(
            draws.numpy(),
            labels=list(task.parameters),
            color=colour,
            fig=figure,
            range=span,
            plot_datapoints=False,
            plot_density=False,
            levels=(0.5, 0.9),
            smooth=1.0,
            bins=40,
            hist_kwargs={"density": True},
            truths=theta_star[0].tolist(),
            truth_color="black",
        )
    assert figure is not None
    names = ((GREY, "exact"), (COLOURS[1], f"auto ({adapted.method.name})"), ("black", "true parameters"))
    handles = [Line2D([], [], color=c, label=label) for c, label in names]
    figure.legend(handles=handles, loc="upper right", frameon=False, title=f"{NAMES[task_name]}, {regime.upper()}")
    return _save(figure, folder / f"corner-{task_name}-{regime}.png")


def _points(ax: Any, values: dict, methods: list[str], shift: float, colour: str, label: str, marker: str) -> None:
    at = [methods.index(m) + shift for m in values]
    mean, sd = [v[0] for v in values.values()], [0.0 if np.isnan(v[1]) else v[1] for v in values.values()]
    ax.errorbar(at, mean, sd, fmt=marker, color=colour, ms=4, lw=1, label=label)


def _bands(records: list[Record], where: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The first row with a band, by method; of preset best, where there are several."""
    found: dict[str, dict[str, Any]] = {}
    for record in sorted(records, key=lambda record: record["job"]["preset"] != "best"):
        job, rows = record["job"], record["rows"]
        if rows and "band" in rows[0] and all(job[name] == value for name, value in where.items()):
            found.setdefault(job["method"], rows[0])
    return found


def _span(theta: np.ndarray) -> list[tuple[float, float]]:
    low, high = np.quantile(theta, [0.002, 0.998], axis=0)
    return [(float(a - 0.05 * (b - a)), float(b + 0.05 * (b - a))) for a, b in zip(low, high, strict=True)]


def _save(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
