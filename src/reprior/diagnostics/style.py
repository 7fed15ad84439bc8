"""The style of the figures in a report. Every figure is drawn off-screen, without matplotlib's global state."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["AFTER", "BEFORE", "BEFORE_LINE", "DPI", "GRID", "INK", "SOFT", "STYLE", "png"]

BEFORE, BEFORE_LINE, AFTER = "#9aa3ad", "#7d8691", "#1f5f99"
INK, SOFT, GRID = "#22272e", "#57606a", "#e3e6ea"
DPI = 160  # dots per inch: sharp on a screen with two pixels per CSS pixel
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
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.4,
}


def png(fig: Figure, tight: bool = False) -> bytes:
    """A figure as PNG bytes.

    Arguments:
        fig: the figure.
        tight: cut off the empty margin.
    """
    FigureCanvasAgg(fig)
    out = io.BytesIO()
    extra: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.05} if tight else {}
    fig.savefig(out, format="png", dpi=DPI, metadata={"Software": None}, **extra)
    return out.getvalue()
