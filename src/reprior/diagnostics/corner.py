"""A corner plot of the posterior before and after: all marginals of one and of two parameters.

Contours hold 39 % and 86 % of the samples: one and two standard deviations of a Gaussian in two dimensions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from scipy.ndimage import gaussian_filter

from reprior.diagnostics.draws import Scene
from reprior.diagnostics.style import AFTER, BEFORE_LINE, STYLE, png

__all__ = ["corner_figure"]

BINS = 36  # bins per parameter: enough detail for a few thousand samples
SMOOTH = 1.4  # width of the smoothing in bins: without it the outer contour of a few thousand samples is ragged
HELD = (0.865, 0.393)  # the fraction of samples inside each contour, the outer one first
SIZES = {1: 3.2, 2: 4.4, 3: 5.4, 4: 6.4}  # side of the figure in inches, by the number of parameters
LARGEST = 7.8  # inches, for more parameters: the width of the report


def corner_figure(scene: Scene, names: tuple[str, ...], which: list[int]) -> bytes:
    """Corner plot of the posterior before and after, as PNG bytes.

    Arguments:
        scene: the samples at an observation.
        names: the names of the parameters.
        which: the parameters to draw.
    """
    n = min(len(scene.base), len(scene.adapted)) if scene.usable else len(scene.base)
    before, after = scene.base[:n, which].double().numpy(), scene.adapted[:n, which].double().numpy()
    low, high = np.quantile(np.concatenate([before, after]), [0.002, 0.998], axis=0)
    pad = 0.06 * np.maximum(high - low, 1e-9)
    edges = np.linspace(low - pad, high + pad, BINS + 1, axis=1)  # (d, BINS + 1)
    d = len(which)
    layers = [(before, BEFORE_LINE, False), (after, AFTER, True)]
    with rc_context(STYLE | {"axes.spines.top": True, "axes.spines.right": True}):
        size = SIZES.get(d, LARGEST)
        fig = Figure(figsize=(size, size))
        axes: Any = fig.subplots(d, d, squeeze=False, gridspec_kw={"wspace": 0.06, "hspace": 0.06})
        for row in range(d):
            for column in range(d):
                ax = axes[row, column]
                if column > row:
                    ax.set_visible(False)
                    continue
                for draws, color, fill in layers if scene.usable else layers[:1]:
                    if row == column:
                        _marginal(ax, draws[:, row], edges[row], color)
                    else:
                        _pair(ax, draws[:, [column, row]], edges[column], edges[row], color, fill)
                _label(ax, row, column, d, [names[i] for i in which])
                ax.set_xlim(edges[column][0], edges[column][-1])
                if row != column:
                    ax.set_ylim(edges[row][0], edges[row][-1])
        fig.align_labels()
        _key(fig, d)
        return png(fig, tight=True)


def _marginal(ax: Any, values: np.ndarray, edges: np.ndarray, color: str) -> None:
    counts = gaussian_filter(np.histogram(values, edges)[0].astype(float), 1.0)
    ax.plot((edges[1:] + edges[:-1]) / 2, counts, color=color, lw=1.4)
    ax.set_ylim(0, 1.1 * max(float(np.max(line.get_ydata())) for line in ax.lines))


def _pair(ax: Any, values: np.ndarray, x: np.ndarray, y: np.ndarray, color: str, fill: bool) -> None:
    counts = gaussian_filter(np.histogram2d(values[:, 0], values[:, 1], (x, y))[0], SMOOTH)
    falling = np.sort(counts.ravel())[::-1]
    held = falling.cumsum() / falling.sum()
    levels = [float(falling[np.searchsorted(held, part)]) for part in HELD]
    if not levels[0] < levels[1] < counts.max():  # a few bins hold everything
        return
    x, y = (x[1:] + x[:-1]) / 2, (y[1:] + y[:-1]) / 2
    if fill:
        ax.contourf(x, y, counts.T, [*levels, counts.max()], colors=[color, color], alpha=0.35)
        ax.contourf(x, y, counts.T, [levels[1], counts.max()], colors=[color], alpha=0.35)
    ax.contour(x, y, counts.T, levels, colors=color, linewidths=1.1)


def _label(ax: Any, row: int, column: int, d: int, names: list[str]) -> None:
    """Ticks and names on the left and at the bottom only."""
    ax.tick_params(labelsize=7.5 if d > 4 else 8)
    ax.xaxis.set_major_locator(MaxNLocator(4, prune="both"))
    ax.yaxis.set_major_locator(MaxNLocator(4, prune="both"))
    if row == d - 1:
        ax.set_xlabel(names[column])
    else:
        ax.set_xticklabels([])
    if row == column:
        ax.set_yticks([])
    elif column == 0:
        ax.set_ylabel(names[row])
    else:
        ax.set_yticklabels([])


def _key(fig: Figure, d: int) -> None:
    lines = [Line2D([], [], color=BEFORE_LINE, lw=2), Line2D([], [], color=AFTER, lw=2)]
    names = ["before, under the prior p", "after, under the target prior q"]
    where = ("lower center", (0.5, 0.9)) if d < 3 else ("upper right", (0.9, 0.88))
    fig.legend(lines, names, loc=where[0], bbox_to_anchor=where[1])
