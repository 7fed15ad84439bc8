"""The figures of a report, as PNG bytes.

Priors (p and q), calibration (rank ECDFs with their band, rank histograms, coverage) and the prior-ratio weights; the posterior
before and after is in `reprior.diagnostics.corner`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor

from reprior.diagnostics.calibration import Calibration
from reprior.diagnostics.draws import Scene
from reprior.diagnostics.style import AFTER, BEFORE, GRID, SOFT, STYLE, png
from reprior.weights import pareto_k

__all__ = ["calibration_figure", "coverage_figure", "priors_figure", "shown", "weights_figure"]

MOST = 8  # parameters in one figure: more would be too small to read


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
        return png(fig)


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
                axis.axhline(edge, color=SOFT, lw=0.7, ls=(0, (4, 3)))
            axis.set_title(names[i], fontsize=8.5)
            axis.set(xlim=(0, 1), xticks=[0, 1], yticks=[])
            axis.spines["left"].set_visible(False)
        for axis in small[d:]:
            axis.set_visible(False)
        return png(fig)


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
        ax.plot([0, 1], [0, 1], color=SOFT, lw=0.8)
        ax.step(u[order], np.cumsum(w[order]), where="post", color=AFTER)
        ax.set(xlabel="credibility", ylabel="expected coverage", xlim=(0, 1), ylim=(0, 1), aspect="equal")
        return png(fig)


def weights_figure(scene: Scene) -> bytes:
    """Sorted weights, and their cumulative sum, with Pareto k-hat."""
    log_w = scene.log_r[scene.log_r > -math.inf].numpy()
    n = len(scene.log_r)
    w = np.exp(log_w - log_w.max())
    w = np.sort(w / w.sum())[::-1]
    with rc_context(STYLE):
        fig = Figure(figsize=(8.2, 2.7), layout="constrained")
        left, right = fig.subplots(1, 2)
        rank = np.arange(1, len(w) + 1)
        left.loglog(rank, w * n, color=AFTER)
        left.axhline(1, color=SOFT, lw=0.8, ls=(0, (4, 3)))
        left.text(1, 0.85, "all equal", ha="left", va="top", fontsize=8, color=SOFT)
        low = max(float(w[int(0.98 * len(w)) - 1] * n), 1e-6)
        left.set(xlabel="base samples, sorted by weight", ylabel="weight x N", ylim=(low / 2, None))
        right.plot(rank / n, np.cumsum(w), color=AFTER)
        right.plot([0, 1], [0, 1], color=SOFT, lw=0.8, ls=(0, (4, 3)))
        k = pareto_k(scene.log_r)
        label = "" if math.isnan(k) else f"Pareto k-hat {k:.2f}"
        right.text(0.97, 0.06, label, ha="right", fontsize=8.5, transform=right.transAxes)
        right.set(xlabel="fraction of base samples", ylabel="fraction of weight", xlim=(0, 1), ylim=(0, 1.01))
        layout: Any = fig.get_layout_engine()
        layout.set(w_pad=0.15)
        return png(fig)


def _half(n_eff: float) -> float:
    """Half the width of the 95 % Kolmogorov-Smirnov band."""
    return 1.358 / math.sqrt(max(n_eff, 1.0))


def _band(ax: Any, n_eff: float) -> None:
    half = _half(n_eff)
    ax.axhspan(-half, half, color=GRID, lw=0)
    ax.axhline(0, color=SOFT, lw=0.7)
    high = max(1.5 * half, 1.05 * max(abs(v) for v in ax.dataLim.intervaly))
    ax.set_ylim(-high, high)


def _count_band(n_eff: float, bins: int = 10) -> tuple[float, float]:
    """Where 95 % of the heights of one bin lie, relative to a flat histogram."""
    sd = math.sqrt((1 / bins) * (1 - 1 / bins) / max(n_eff, 1.0)) * bins
    return max(0.0, 1 - 1.96 * sd), 1 + 1.96 * sd


def _legend(fig: Figure, ax: Any) -> None:
    handles, labels = ax.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper left", ncols=2)
