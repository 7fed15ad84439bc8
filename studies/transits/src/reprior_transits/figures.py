"""The figures of a light-curve study: the posterior after each window, the error against n, the windows.

Each function draws off-screen and writes one PNG. Colours: grey for the prior, blue for the posterior, green once the
period is known, red for published values, black for a conventional fit of the same data and for the data themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from reprior import priors
from reprior.diagnostics.figures import STYLE
from reprior_transits.tables import COLUMNS, INTEREST
from reprior_transits.targets import Reference
from reprior_transits.transit import TransitSimulator
from reprior_transits.transit_prior import TransitPrior, fold_inclination
from reprior_transits.windows import Windows

__all__ = ["errors_figure", "steps_figure", "windows_figure"]

PRIOR, POSTERIOR, PUBLISHED, FIT, INK = "#b9bfc6", "#1f5f99", "#c0392b", "#22272e", "#57606a"
KNOWN = "#2a8c6a"
LABELS = {"k": r"$k = R_p/R_s$", "a": r"$a/R_s$", "inc": "inclination (deg)", "P": "period (d)"}
RUNS: dict[str, tuple[str, str, str]] = {
    "accumulate": ("accumulate", POSTERIOR, "-"),
    "known period": ("accumulate, then the known period", KNOWN, "-"),
    "ratio": ("ratio from samples, then NRE", "#8e6bb0", "-"),
    "priorguide_mc": ("PriorGuide Monte Carlo", "#d98c2b", "--"),
    "exact": ("exact, from the likelihood", FIT, "-"),
    "shuffled": ("accumulate, windows shuffled", POSTERIOR, ":"),
}
MOST = 14  # rows of a figure: what a page holds
CELLS = 200  # of a density: finer than a printed column
DPI = 130


def steps_figure(
    steps: Sequence[Tensor],
    path: str | Path,
    published: Reference,
    fit: Reference,
    known: Sequence[Tensor] = (),
    title: str = "",
) -> Path:
    """One row a window, one column a parameter of interest: prior, posterior after that window, reference values.

    A column spans the posterior after the first window and the references; each density has its own scale.

    Arguments:
        steps: samples after each window, each with shape (n, 8).
        path: the PNG file.
        published: published values (red, dashed).
        fit: a conventional fit of the same data (black, with its error as a band).
        known: the same with the period known, drawn in green where given.
        title: above the figure.
    """
    shown = _chosen(len(steps))
    prior = fold_inclination(priors.sample(TransitPrior(), 40_000, seed=0))[:, COLUMNS].numpy()
    first = fold_inclination(steps[0])[:, COLUMNS].numpy()
    spans = [_span(prior[:, j], first[:, j], [published.theta[j], fit.theta[j]]) for j in range(len(INTEREST))]
    with rc_context(STYLE):
        figure = Figure(figsize=(9.5, 0.62 * len(shown) + 1.5), layout="constrained")
        axes = figure.subplots(len(shown), 4, sharex="col", squeeze=False)
        for row, n in enumerate(shown):
            theta = fold_inclination(steps[n])[:, COLUMNS].numpy()
            other = fold_inclination(known[n])[:, COLUMNS].numpy() if known else None
            for j, name in enumerate(INTEREST):
                axis = axes[row, j]
                low, high = spans[j]
                edge = 90.0 if name == "inc" else np.inf
                _density(axis, prior[:, j], spans[j], PRIOR, "prior", edge)
                _density(axis, theta[:, j], spans[j], POSTERIOR, "posterior, windows alone", edge)
                if other is not None and name != "P":
                    _density(axis, other[:, j], spans[j], KNOWN, "posterior, period known", edge)
                axis.axvline(published.theta[j], color=PUBLISHED, linestyle="--", linewidth=1.1, label="published")
                if np.isfinite(fit.errors[j]):
                    band = (fit.theta[j] - fit.errors[j], fit.theta[j] + fit.errors[j])
                    axis.axvspan(*band, color=FIT, alpha=0.22, linewidth=0, label="conventional fit, one sd")
                axis.set(xlim=(low, high), ylim=(0, 1.12), yticks=[])
                if row == len(shown) - 1:
                    axis.set_xlabel(LABELS[name])
            axes[row, 0].set_ylabel(f"n = {n + 1}", rotation=0, ha="right", va="center")
        handles = axes[0, 0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=5)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        return _write(figure, path)


def errors_figure(rows: Sequence[Mapping[str, Any]], path: str | Path, title: str = "") -> Path:
    """The normalised RMSE against the number of windows, about the fit and about the published values, one line a run.

    Arguments:
        rows: of `tables.error_rows`.
        path: the PNG file.
        title: above the figure.
    """
    panels = {"rmse_fit": "about the conventional fit", "rmse_published": "about the published values"}
    with rc_context(STYLE):
        figure = Figure(figsize=(9.5, 3.8), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for axis, (column, name) in zip(axes, panels.items(), strict=True):
            for run in dict.fromkeys(row["run"] for row in rows):
                mine = [(row["n"], row[column]) for row in rows if row["run"] == run]
                label, colour, style = RUNS.get(run, (run, INK, "-"))
                axis.plot(*zip(*mine, strict=True), style, color=colour, marker="o", markersize=3, label=label)
            axis.set(xlabel="windows n", ylim=(0, None))
            axis.set_xticks(sorted({row["n"] for row in rows}))
            axis.grid(axis="y", color="#e3e6ea", linewidth=0.6)
            axis.set_title(name, fontsize=9)
        axes[0].set_ylabel("normalised RMSE (prior sd)")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        return _write(figure, path)


def windows_figure(
    windows: Windows,
    steps: Sequence[Tensor],
    simulator: TransitSimulator,
    path: str | Path,
    title: str = "",
    draws: int = 400,
) -> Path:
    """The windows with the posterior predictive: light curve (median, 95 %) and where points fall (95 %).

    Arguments:
        windows: of the target.
        steps: samples after each window, each with shape (n, 8); sample n holds the mid-time and noise of window n.
        simulator: of such windows.
        path: the PNG file.
        title: above the figure.
        draws: posterior samples that a band is made of.
    """
    shown = _chosen(len(windows))
    columns = min(len(shown), 5 if len(shown) <= 5 else 4)
    rows = -(-len(shown) // columns)
    with rc_context(STYLE):
        figure = Figure(figsize=(2.5 * columns + 0.6, 1.75 * rows + 0.9), layout="constrained")
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axis in axes.flat[len(shown) :]:
            axis.set_visible(False)
        for axis, n in zip(axes.flat, shown, strict=False):
            theta = steps[n][:draws]
            curve = simulator.flux(theta)
            theta, curve = theta[curve.isfinite().all(1)], curve[curve.isfinite().all(1)]
            noise = torch.randn(curve.shape, generator=torch.Generator().manual_seed(n)) * theta[:, -1:]
            low, middle, high = np.quantile(curve.numpy(), [0.025, 0.5, 0.975], axis=0)
            lowest, highest = np.quantile((curve + noise).numpy(), [0.025, 0.975], axis=0)
            axis.fill_between(windows.time, lowest, highest, color=POSTERIOR, alpha=0.15, linewidth=0)
            axis.fill_between(windows.time, low, high, color=POSTERIOR, alpha=0.55, linewidth=0)
            axis.plot(windows.time, middle, color=POSTERIOR, linewidth=1.0)
            axis.plot(windows.time, windows.flux[n], ".", color=FIT, markersize=2.2)
            axis.set_title(f"n = {n + 1}, t = {windows.mid_times[n]:.3f} d", fontsize=8)
        for axis in axes[-1]:
            axis.set_xlabel("days from mid-transit")
        for axis in axes[:, 0]:
            axis.set_ylabel("flux")
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        return _write(figure, path)


def _chosen(n: int) -> list[int]:
    """All windows, or MOST of them, evenly spread, the first and the last among them."""
    return sorted({round(i) for i in np.linspace(0, n - 1, min(n, MOST))})


def _span(prior: np.ndarray, first: np.ndarray, references: Sequence[float]) -> tuple[float, float]:
    """Where a column begins and ends: the first posterior and the references, with room, within the prior."""
    low, high = np.quantile(first, [0.002, 0.998])
    low, high = min(low, *references), max(high, *references)
    room = 0.25 * (high - low)
    lowest, highest = np.quantile(prior, [0.002, 0.998])
    return max(low - room, min(lowest, low)), min(high + room, max(highest, high))


def _density(
    axis: Any, values: np.ndarray, span: tuple[float, float], colour: str, label: str, edge: float = np.inf
) -> None:
    """A kernel density scaled to height 1; where values end at an edge, mirror images beyond it keep its height."""
    width = 0.9 * values.std() * len(values) ** -0.2
    grid = np.linspace(span[0], min(span[1], edge), CELLS + 1)
    step = grid[1] - grid[0]
    cut = int(np.ceil(4 * width / step))  # of the kernel, in grid steps
    cells = np.arange(-cut, CELLS + cut + 2) * step + grid[0] - step / 2
    mirrored = np.concatenate([values, 2 * edge - values]) if np.isfinite(edge) else values
    kernel = np.exp(-((np.arange(-cut, cut + 1) * step / max(width, step / 4)) ** 2) / 2)
    height = np.convolve(np.histogram(mirrored, cells)[0], kernel, mode="valid")
    height = height / max(height.max(), 1)
    axis.fill_between(grid, height, color=colour, alpha=0.5, linewidth=0, label=label)


def _write(figure: Figure, path: str | Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=DPI)
    return path
