"""The package: what is in its wheel, and that the library does without it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_wheel_holds_the_tables_of_the_paper_and_no_results(tmp_path):
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    kept = {name for name in names if not name.startswith("reprior_bench-")}
    sources = (ROOT / "src" / "reprior_bench").rglob("*")
    wanted = {p.relative_to(ROOT / "src").as_posix() for p in sources if p.suffix in (".py", ".csv")}
    assert kept == wanted
    assert {f"reprior_bench/paper_{part}.csv" for part in ("posterior", "predictive", "ess")} <= kept


def test_the_library_does_not_know_the_benchmark():
    library = ROOT.parent / "src" / "reprior"
    assert [p.name for p in library.rglob("*.py") if "reprior_bench" in p.read_text()] == []


def test_a_competitor_is_known_once_the_package_is_imported():
    code = (
        "import reprior.methods as m; before = set(m.registered()); import reprior_bench.methods; "
        "print(sorted(set(m.registered()) - before))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "['analytic', 'priorguide', 'priorguide_mc', 'wsm']"
