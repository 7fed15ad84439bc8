"""The tables as Markdown, ours beside the paper's: one file per metric, one table per task.

A cell is the mean over observations of the run average, with the standard deviation over observations in brackets. Bold
is the best group. Numbers of observations, runs or samples other than the paper's (10, 3, 5,000) stand behind the value.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from reprior.io import write_text
from reprior_bench import tasks
from reprior_bench.paper import NOT_GIVEN, PAPER_OBSERVATIONS, PAPER_RUNS, PAPER_SAMPLES, PaperValue, paper_values
from reprior_bench.predictive import PREDICT_METRICS
from reprior_bench.presets import PRESETS
from reprior_bench.tables import UNRANKED, Place
from reprior_bench.tasks import BENCHMARK, REGIMES

__all__ = ["evidence_table", "fill", "write_tables"]

TITLES = {
    "c2st": "C2ST, random forest (the paper's; 0.5 is perfect)",
    "c2st_fast": "C2ST, boosted trees (ours: sees small shifts that the forest does not; 0.5 is perfect)",
    "mmd": "MMD, squared, Gaussian kernel, median bandwidth",
    "sliced_w2": "Sliced W2 (the paper's WS-2)",
    "rmse": "RMSE to the true parameters",
    "predict_rmse": "RMSE of the posterior predictive, first third of the series observed",
    "predict_coverage": "Fraction of predicted points inside the central 95 % band",
}
HUGE = 1e4  # a value of a sampler that diverged, shown in powers of ten
NAMES = {name: tasks.get(name).title for name in BENCHMARK}
METHOD_ORDER = (
    *dict.fromkeys(m for preset in PRESETS.values() for m in preset.methods if m not in UNRANKED),
    *UNRANKED,
)
COMPARED = ("base", "priorguide", "wsm", "nre", "auto")
Rows = list[dict[str, Any]]
Key = tuple[str, str, str, str]


def write_tables(rows: Rows, folder: Path, refused: dict[Place, str] | None = None) -> list[Path]:
    """Writes every table that there are rows for, removes those there are none for, and returns the paths written.

    Arguments:
        rows: as `reprior_bench.tables.summarise` gives them.
        folder: where to write.
        refused: as `reprior_bench.tables.refusals` gives them.
    """
    paper = paper_values()
    texts = {"summary": _summary(rows, paper)}
    if any(r["method"] in COMPARED and r["metric"] == "c2st_fast" for r in rows):
        texts["same_base"] = _same_base(rows)
    if any((r["preset"], r["metric"]) == ("paper", "c2st") for r in rows):
        texts["preset_paper"] = _preset_paper(rows, paper)
    for metric, title in TITLES.items():
        if any(r["metric"] == metric for r in rows):
            texts[metric] = f"## {title}\n\n" + _metric(rows, metric, paper, refused or {})
    if any(r["metric"] == "ess" and r["method"] == "base" for r in rows):
        texts["ess"] = _ess(rows, paper)
    for name in {*TITLES, "same_base", "preset_paper", "ess"} - set(texts):
        (folder / f"{name}.md").unlink(missing_ok=True)
    return [write_text(folder / f"{name}.md", text) for name, text in texts.items()]


def fill(page: Path, folder: Path) -> list[str]:
    """Puts tables into a page, between lines `<!-- table NAME -->` and `<!-- end -->`; returns the names it filled.

    Where there is no such table, what stood there is taken out.
    """
    filled = []

    def block(match: re.Match[str]) -> str:
        path = folder / f"{match[1]}.md"
        if not path.exists():
            return f"<!-- table {match[1]} -->\n\n<!-- end -->"
        filled.append(match[1])
        body = re.sub(r"^#", "##", path.read_text().strip(), flags=re.MULTILINE)
        return f"<!-- table {match[1]} -->\n\n{body}\n\n<!-- end -->"

    write_text(page, re.sub(r"<!-- table (\w+) -->\n.*?<!-- end -->", block, page.read_text(), flags=re.DOTALL))
    return filled


def evidence_table(rows: Rows, folder: Path) -> Path:
    """Writes the table of `reprior_bench.evidence.evidence_rows`, and returns its path."""
    lines = [
        "## From exact references alone, beside the paper's figures\n",
        _line("case", "task", "regime", "exact", "paper's", "paper's row", "observations"),
        _line(*["---"] * 3, *["---:"] * 2, "---", "---:"),
    ]
    for r in rows:
        theirs = "" if math.isnan(r["paper"]) else f"{r['paper']:.3g}"
        ours = f"{r['mean']:.3f}" + ("" if math.isnan(r["std"]) else f" ({r['std']:.3f})")
        name = NAMES.get(r["task"], str(r["task"]))
        lines.append(_line(r["case"], name, r["regime"], ours, theirs, r["paper_row"], str(r["observations"])))
    return write_text(folder / "evidence.md", "\n".join(lines) + "\n")


def _metric(rows: Rows, metric: str, paper: dict[Key, PaperValue], refused: dict[Place, str]) -> str:
    """One table per task: a row per method, the paper's column and one per preset and network, for each regime."""
    ours = {_place(r): r for r in rows if r["metric"] == metric}
    part = "predictive" if metric in PREDICT_METRICS else "posterior"
    parts = []
    for task in BENCHMARK:
        columns = sorted({(p, n) for t, _, p, n, _ in ours if t == task})
        if not columns:
            continue
        heads = [f"{regime.upper()}: {h}" for regime in REGIMES for h in ("paper's", *map(_label, columns))]
        lines = [_line("method", *heads), _line("---", *["---:"] * len(heads))]
        for method in METHOD_ORDER:
            cells = []
            for regime in REGIMES:
                theirs = paper.get((task, regime, method, metric))
                cells.append("" if theirs is None else f"{theirs[0]:.2f} ({theirs[1]:.2f})")
                for preset, network in columns:
                    no = (task, regime, preset, network, part, method) in refused
                    cells.append("refuses" if no else _value(ours.get((task, regime, preset, network, method))))
            if any(cells):
                lines.append(_line(f"*{method}*" if method in UNRANKED else method, *cells))
        parts.append(f"### {NAMES[task]}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _summary(rows: Rows, paper: dict[Key, PaperValue]) -> str:
    """C2ST of `auto` beside the best row of the paper."""
    lines = [
        "## C2ST of `auto` beside the paper's best method\n",
        _line("task", "regime", "paper's best", "auto, forest", "auto, boosted trees", "chosen method"),
        _line(*["---"] * 2, *["---:"] * 3, "---"),
    ]
    autos = {(_place(r)[:4], r["metric"]): r for r in rows if r["method"] == "auto" and "c2st" in r["metric"]}
    for task in BENCHMARK:
        for regime in REGIMES:
            ranked = [
                v[0] for k, v in paper.items() if (*k[:2], k[3]) == (task, regime, "c2st") and k[2] not in UNRANKED
            ]
            for place in sorted({k for k, _ in autos if k[:2] == (task, regime)}):
                forest, trees = autos.get((place, "c2st")), autos.get((place, "c2st_fast"))
                some = forest or trees
                assert some is not None
                label = regime if place[2:] == ("best", "mlp") else f"{regime}, {_label(place[2:])}"
                chosen = some["note"].split(";")[0].removeprefix("chose ")
                ours = (
                    _value(row, ranked=False) for row in (forest, trees)
                )  # bold would read as better than the paper
                best = f"{min(ranked):.2f}" if ranked else ""
                lines.append(_line(NAMES[task], label, best, *ours, chosen))
    return "\n".join(lines) + "\n"


def _same_base(rows: Rows) -> str:
    """C2ST of the main methods on the base of preset best, ID / OOD."""
    runs = {m: {r["runs"] for r in rows if _place(r)[2:] == ("best", "mlp", m)} for m in COMPARED}
    lines = [
        "## C2ST on the same base: ID / OOD\n",
        _line("task", "by", *(f"{m}, {_runs(min(runs[m]), max(runs[m]))}" if runs[m] else m for m in COMPARED)),
        _line("---", "---", *["---:"] * len(COMPARED)),
    ]
    for task in BENCHMARK:
        for metric, by in (("c2st", "forest"), ("c2st_fast", "boosted trees")):
            ours = {_place(r)[1:]: f"{r['mean']:.3f}" for r in rows if (r["task"], r["metric"]) == (task, metric)}
            if ours:
                told = [[ours.get((regime, "best", "mlp", m), "-") for regime in REGIMES] for m in COMPARED]
                lines.append(_line(NAMES[task], by, *(" / ".join(pair) for pair in told)))
    return "\n".join(lines) + "\n"


def _preset_paper(rows: Rows, paper: dict[Key, PaperValue]) -> str:
    """C2ST of every method of preset paper by the forest, beside the paper's own."""
    ours = {_place(r): r for r in rows if (r["preset"], r["metric"]) == ("paper", "c2st")}
    methods = PRESETS["paper"].methods
    lines = [
        "## C2ST in preset `paper`, random forest: ours / the paper's\n",
        _line("task", "regime", *(f"*{m}*" if m in UNRANKED else m for m in methods)),
        _line("---", "---", *["---:"] * len(methods)),
    ]
    for task in BENCHMARK:
        for regime in REGIMES:
            cells = []
            for method in methods:
                row = ours.get((task, regime, "paper", "simformer", method))
                theirs = paper.get((task, regime, method, "c2st"))
                told = "-" if row is None else "diverges" if math.isnan(row["mean"]) else f"{row['mean']:.3f}"
                cells.append("" if theirs is None else f"{told} / {theirs[0]:.2f}")
            lines.append(_line(NAMES[task], regime, *cells))
    return "\n".join(lines) + "\n"


def _runs(few: int, many: int) -> str:
    return f"{many} run{'s' * (many > 1)}" if few == many else f"{few} to {many} runs"


def _ess(rows: Rows, paper: dict[Key, PaperValue]) -> str:
    lines = [
        "## ESS/N of the prior-ratio weights over base samples\n",
        _line("task", "base", *(f"{r.upper()}: {who}" for r in REGIMES for who in ("paper's", "ours"))),
        _line("---", "---", *["---:"] * 4),
    ]
    ours = {_place(r): r for r in rows if r["metric"] == "ess" and r["method"] == "base"}
    for task in BENCHMARK:
        for preset, network in sorted({(p, n) for t, _, p, n, _ in ours if t == task}):
            cells = []
            for regime in REGIMES:
                theirs = paper.get((task, regime, "base", "ess"), NOT_GIVEN)[0]
                cells.append("" if math.isnan(theirs) else f"{theirs:.3f}")
                cells.append(_value(ours.get((task, regime, preset, network, "base"))))
            lines.append(_line(NAMES[task], _label((preset, network)), *cells))
    return "\n".join(lines) + "\n"


def _place(row: dict[str, Any]) -> tuple[str, str, str, str, str]:
    return row["task"], row["regime"], row["preset"], row["network"], row["method"]


def _label(column: tuple[str, ...]) -> str:
    preset, network = column
    return f"preset {preset}" + (", Simformer" if network == "simformer" and preset.startswith("best") else "")


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < HUGE else f"{value:.1e}"


def _value(row: dict[str, Any] | None, ranked: bool = True) -> str:
    if row is None:
        return ""
    if math.isnan(row["mean"]):
        return "diverges"
    text = _number(row["mean"]) + ("" if math.isnan(row["std"]) else f" ({_number(row['std'])})")
    if ranked and row["in_best_group"]:
        text = f"**{text}**"
    if (row["observations"], row["runs"]) != (PAPER_OBSERVATIONS, PAPER_RUNS) or row["samples"] != PAPER_SAMPLES:
        counts = [f"{row['observations']} obs.", _runs(row["runs"], row["runs"])]
        counts += [f"{row['samples']:,} samples"] if row["samples"] != PAPER_SAMPLES else []
        text += f" [{', '.join(counts)}]"
    return text


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
