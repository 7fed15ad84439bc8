"""The figures of a report, as PNG bytes.

Priors (p and q), the posterior before and after, calibration (rank ECDFs with their band, rank histograms, coverage)
and the prior-ratio weights. Every figure is drawn off-screen, with no global state.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from reprior.diagnostics.calibration import Calibration
from reprior.diagnostics.draws import Scene
from reprior.weights import pareto_k

__all__ = ["calibration_figure", "corner_figure", "coverage_figure", "priors_figure", "weights_figure"]

BEFORE, AFTER, INK, GRID = "#9aa3ad", "#1f5f99", "#22272e", "#e3e6ea"
MOST = 8  # parameters in a figure
DPI = 160
STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Source Sans 3", "Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 9,
    "axes.edgecolor": "#8b949e",
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titleweight": "regular",
    "axes.titlelocation": "left",
    "text.color": INK,
    "xtick.color": "#57606a",
    "ytick.color": "#57606a",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.4,
}


def shown(before: Tensor, after: Tensor) -> list[int]:
    """Which parameters are drawn: all, or those whose mean or width changes most.

    Arguments:
        before: draws, with shape (n, d).
        after: draws, with shape (m, d).
    """
    if before.shape[1] <= MOST:
        return list(range(before.shape[1]))
    sd = before.std(0).clamp(min=1e-12)
    moved = ((after.mean(0) - before.mean(0)) / sd).abs() + (after.std(0) / sd).log().abs()
    return sorted(moved.topk(MOST).indices.tolist())


def priors_figure(prior: Tensor, target: Tensor, names: tuple[str, ...], which: list[int]) -> bytes:
    """Marginals of p and q.

    Arguments:
        prior: draws of p, with shape (n, d).
        target: draws of q, with shape (m, d).
        names: the names of the parameters.
        which: the parameters to draw.
    """
    with rc_context(STYLE):
        columns = min(4, len(which))
        rows = math.ceil(len(which) / columns)
        fig = Figure(figsize=(8.2, 1.75 * rows + 0.35), layout="constrained")
        axes = np.atleast_1d(fig.subplots(rows, columns)).ravel()
        for ax, i in zip(axes, which, strict=False):
            both = np.concatenate([prior[:, i].numpy(), target[:, i].numpy()])
            low, high = np.quantile(both, [0.001, 0.999])
            bins = np.linspace(low, high, 45).tolist()
            ax.hist(prior[:, i].numpy(), bins, density=True, color=BEFORE, alpha=0.45, label="prior p")
            ax.hist(target[:, i].numpy(), bins, density=True, histtype="step", color=AFTER, lw=1.5, label="target q")
            ax.set_xlabel(names[i])
            ax.set_yticks([])
            ax.spines["left"].set_visible(False)
        for ax in axes[len(which) :]:
            ax.set_visible(False)
        _legend(fig, axes[0])
        return _png(fig)


def corner_figure(scene: Scene, names: tuple[str, ...], which: list[int]) -> bytes:
    """Corner plot of the posterior before and after.

    Arguments:
        scene: the samples at an observation.
        names: the names of the parameters.
        which: the parameters to draw.
    """
    import corner

    n = min(len(scene.base), len(scene.adapted)) if scene.usable else len(scene.base)
    before, after = scene.base[:n, which].numpy(), scene.adapted[:n, which].numpy()
    both = np.concatenate([before, after])
    low, high = np.quantile(both, [0.002, 0.998], axis=0)
    pad = 0.06 * np.maximum(high - low, 1e-9)
    span: Any = [(float(a), float(b)) for a, b in zip(low - pad, high + pad, strict=True)]
    d = len(which)
    with rc_context(STYLE | {"axes.spines.top": True, "axes.spines.right": True}):
        size = {1: 3.2, 2: 4.4, 3: 5.4, 4: 6.4}.get(d, 7.8)
        fig = Figure(figsize=(size, size))
        layers = [(before, "#7d8691", False), (after, AFTER, True)]
        for draws, color, fill in layers if scene.usable else layers[:1]:
            corner.corner(
                draws,
                fig=fig,
                range=span,
                labels=[names[i] for i in which],
                color=color,
                bins=36,
                smooth=1.0,
                smooth1d=1.0,
                levels=(0.393, 0.865),
                plot_datapoints=False,
                plot_density=False,
                fill_contours=fill,
                no_fill_contours=not fill,
                contour_kwargs={"linewidths": 1.1},
                hist_kwargs={"lw": 1.4},
                max_n_ticks=3,
                labelpad=0.0 if d < 5 else 0.1,
                quiet=True,
            )
        for axis in fig.axes:
            axis.tick_params(labelsize=7.5 if d > 4 else 8)
        for axis in fig.axes[:: d + 1]:  # the diagonal: corner leaves room for the last layer only
            axis.set_ylim(0, 1.1 * max(float(np.max(line.get_ydata())) for line in axis.lines))
        _key(fig, d)
        return _png(fig, tight=True)


def calibration_figure(calibration: Calibration, names: tuple[str, ...], which: list[int]) -> bytes:
    """ECDFs of the ranks minus the diagonal, with a 95 % band, and their histograms.

    Arguments:
        calibration: the calibration.
        names: the names of the parameters.
        which: the parameters to draw.
    """
    from matplotlib import colormaps

    w = (calibration.weights / calibration.weights.sum()).numpy()
    with rc_context(STYLE):
        d = len(which)
        columns = min(4, d)
        rows = math.ceil(d / columns)
        fig = Figure(figsize=(8.2, 2.6 + 1.25 * rows), layout="constrained")
        parts: Any = fig.subfigures(2, 1, height_ratios=[2.5, 1.25 * rows])
        upper, lower = parts
        ax = upper.subplots(1, 1)
        colors = colormaps["viridis"](np.linspace(0.1, 0.8, d))
        for color, i in zip(colors, which, strict=True):
            u = calibration.ranks[:, i].numpy()
            order = np.argsort(u)
            ax.step(u[order], np.cumsum(w[order]) - u[order], where="post", color=color, lw=1.2, label=names[i])
        _band(ax, calibration.n_eff)
        ax.set(xlabel="rank of the true parameter", ylabel="ECDF minus uniform", xlim=(0, 1))
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        small = np.atleast_1d(lower.subplots(rows, columns, sharey=True)).ravel()
        for axis, color, i in zip(small, colors, which, strict=False):
            bins = np.linspace(0, 1, 11).tolist()
            axis.hist(calibration.ranks[:, i].numpy(), bins, weights=w * 10, color=color, alpha=0.6)
            for edge in _count_band(calibration.n_eff):
                axis.axhline(edge, color="#57606a", lw=0.7, ls=(0, (4, 3)))
            axis.set_title(names[i], fontsize=8.5)
            axis.set(xlim=(0, 1), xticks=[0, 1], yticks=[])
            axis.spines["left"].set_visible(False)
        for axis in small[d:]:
            axis.set_visible(False)
        return _png(fig)


def coverage_figure(calibration: Calibration) -> bytes:
    """Expected coverage against credibility (TARP), with a 95 % band."""
    w = (calibration.weights / calibration.weights.sum()).numpy()
    with rc_context(STYLE):
        fig = Figure(figsize=(3.6, 3.4), layout="constrained")
        ax = fig.subplots(1, 1)
        u = calibration.tarp.numpy()
        order = np.argsort(u)
        grid = np.linspace(0, 1, 200)
        half = _half(calibration.n_eff)
        ax.fill_between(grid, np.clip(grid - half, 0, 1), np.clip(grid + half, 0, 1), color=GRID, lw=0)
        ax.plot([0, 1], [0, 1], color="#57606a", lw=0.8)
        ax.step(u[order], np.cumsum(w[order]), where="post", color=AFTER)
        ax.set(xlabel="credibility", ylabel="expected coverage", xlim=(0, 1), ylim=(0, 1), aspect="equal")
        return _png(fig)


def weights_figure(scene: Scene) -> bytes:
    """Sorted weights, and the tail that k-hat is the shape of."""
    log_w = scene.log_r[scene.log_r > -math.inf].numpy()
    n = len(scene.log_r)
    w = np.exp(log_w - log_w.max())
    w = np.sort(w / w.sum())[::-1]
    with rc_context(STYLE):
        fig = Figure(figsize=(8.2, 2.7), layout="constrained")
        left, right = fig.subplots(1, 2)
        rank = np.arange(1, len(w) + 1)
        left.loglog(rank, w * n, color=AFTER)
        left.axhline(1, color="#57606a", lw=0.8, ls=(0, (4, 3)))
        left.text(1, 0.85, "all equal", ha="left", va="top", fontsize=8, color="#57606a")
        low = max(float(w[int(0.98 * len(w)) - 1] * n), 1e-6)
        left.set(xlabel="base samples, sorted by weight", ylabel="weight x N", ylim=(low / 2, None))
        right.plot(rank / n, np.cumsum(w), color=AFTER)
        right.plot([0, 1], [0, 1], color="#57606a", lw=0.8, ls=(0, (4, 3)))
        k = pareto_k(scene.log_r)
        told = "" if math.isnan(k) else f"Pareto k-hat {k:.2f}"
        right.text(0.97, 0.06, told, ha="right", fontsize=8.5, transform=right.transAxes)
        right.set(xlabel="share of base samples", ylabel="share of weight", xlim=(0, 1), ylim=(0, 1.01))
        layout: Any = fig.get_layout_engine()
        layout.set(w_pad=0.15)
        return _png(fig)


def _half(n_eff: float) -> float:
    """Half the width of the 95 % Kolmogorov-Smirnov band."""
    return 1.358 / math.sqrt(max(n_eff, 1.0))


def _band(ax: Any, n_eff: float) -> None:
    half = _half(n_eff)
    ax.axhspan(-half, half, color=GRID, lw=0)
    ax.axhline(0, color="#57606a", lw=0.7)
    high = max(1.5 * half, 1.05 * max(abs(v) for v in ax.dataLim.intervaly))
    ax.set_ylim(-high, high)


def _count_band(n_eff: float, bins: int = 10) -> tuple[float, float]:
    """Where 95 % of the heights of one bin lie, relative to a flat histogram."""
    sd = math.sqrt((1 / bins) * (1 - 1 / bins) / max(n_eff, 1.0)) * bins
    return max(0.0, 1 - 1.96 * sd), 1 + 1.96 * sd


def _legend(fig: Figure, ax: Any) -> None:
    handles, labels = ax.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper left", ncols=2)


def _key(fig: Figure, d: int) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color="#7d8691", lw=2), Line2D([], [], color=AFTER, lw=2)]
    names = ["before, under the prior p", "after, under the target prior q"]
    where = ("lower center", (0.5, 0.98)) if d < 3 else ("upper right", (0.98, 0.97))
    fig.legend(lines, names, loc=where[0], bbox_to_anchor=where[1])


def _png(fig: Figure, tight: bool = False) -> bytes:
    FigureCanvasAgg(fig)
    out = io.BytesIO()
    extra: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.05} if tight else {}
    fig.savefig(out, format="png", dpi=DPI, metadata={"Software": None}, **extra)
    return out.getvalue()
