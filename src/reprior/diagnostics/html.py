"""The report as one HTML file: inline style, figures as data URIs, no script, nothing fetched."""

from __future__ import annotations

import base64
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from reprior.diagnostics import figures
from reprior.diagnostics.check import Outcome, short
from reprior.diagnostics.corner import corner_figure
from reprior.diagnostics.style import DPI
from reprior.io import write_text

if TYPE_CHECKING:
    from reprior.diagnostics.report import Report

__all__ = ["render", "write_html"]

WORDS = {"pass": "pass", "caution": "caution", "stop": "fail", "info": "shown", "skipped": "not made"}
SUMMARY = {
    "ok": "No check found a fault in the adapted posterior.",
    "caution": "The adapted posterior may be inaccurate: read the reasons before relying on it.",
    "do not trust": "The adapted posterior should not be used as it is.",
}


def write_html(report: Report, path: str | Path) -> Path:
    """Writes the report and returns its path."""
    target = Path(path)
    if not target.suffix:
        target = target.with_suffix(".html")
    return write_text(target, render(report))


def render(report: Report) -> str:
    """The HTML text."""
    environment = Environment(
        loader=PackageLoader("reprior.diagnostics", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html.jinja")
    return template.render(
        report=report,
        about=report.about,
        summary=SUMMARY[report.verdict],
        badge=report.verdict.replace(" ", "-"),
        groups=_groups(report),
        figures=_figures(report),
        table=_table(report),
        observation=_observation(report),
    )


def _groups(report: Report) -> dict[str, list[dict[str, str]]]:
    """The rows of the checks by group, in the order of the report."""
    groups: dict[str, list[dict[str, str]]] = {}
    for one in report.checks:
        groups.setdefault(one.group, []).append(_row(one))
    return groups


def _row(one: Outcome) -> dict[str, str]:
    return {
        "title": one.title,
        "meaning": one.meaning,
        "note": one.note,
        "value": short(one.value) if not math.isnan(one.value) else "-",
        "threshold": one.threshold,
        "outcome": one.outcome,
        "word": WORDS[one.outcome],
    }


def _figures(report: Report) -> dict[str, dict[str, Any]]:
    scene, names = report.scenes[0], report.parameters
    which = figures.shown(scene.base, scene.adapted if scene.usable else scene.base)
    made = {
        "priors": figures.priors_figure(report.prior, report.target, names, which),
        "corner": corner_figure(scene, names, which),
    }
    if bool((scene.log_r > -math.inf).any()):  # else there is no weight to show
        made["weights"] = figures.weights_figure(scene)
    if not report.calibration.why_not:
        made["ranks"] = figures.calibration_figure(report.calibration, names, which)
        made["coverage"] = figures.coverage_figure(report.calibration)
    return {
        name: {"src": "data:image/png;base64," + base64.b64encode(png).decode(), "width": _width(png)}
        for name, png in made.items()
    }


def _width(png: bytes) -> int:
    """The width in CSS pixels at which text in the figure has its own size (the header holds it in pixels)."""
    return round(int.from_bytes(png[16:20], "big") * 96 / DPI)


def _table(report: Report) -> list[dict[str, str]]:
    """Mean and standard deviation of each parameter before and after, at the first observation."""
    scene = report.scenes[0]
    out: list[dict[str, str]] = []
    if not scene.usable:
        return out
    for i, name in enumerate(report.parameters):
        before, after = scene.base[:, i].double(), scene.adapted[:, i].double()
        moved = float((after.mean() - before.mean()) / before.std().clamp(min=1e-30))
        out.append(
            {
                "name": name,
                "before": f"{float(before.mean()):.4g} ± {float(before.std()):.2g}",
                "after": f"{float(after.mean()):.4g} ± {float(after.std()):.2g}",
                "moved": f"{moved:+.2f}",
                "width": f"{float(after.std() / before.std().clamp(min=1e-30)):.2f}",
            }
        )
    return out


def _observation(report: Report) -> str:
    values = report.about["observation"]
    if values is None:
        count = report.about["observations"]
        return f"{count} stored observations that are likely under the target prior; the figures show the first"
    shown = ", ".join(f"{v:.4g}" for v in values[:12])
    return f"x = ({shown}{', …' if len(values) > 12 else ''})" + (
        f", {len(values)} entries" if len(values) > 12 else ""
    )
