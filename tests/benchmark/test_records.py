"""Records are written once, whole."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

from reprior.benchmark import records


def test_of_many_writers_exactly_one_wins(tmp_path):
    path = tmp_path / "cells" / "a.json"
    with ThreadPoolExecutor(8) as pool:
        wrote = list(pool.map(lambda i: records.write_once(path, {"writer": i, "fill": "x" * 10_000}), range(16)))
    assert sum(wrote) == 1
    assert records.read_record(path)["writer"] == wrote.index(True)
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_a_second_write_changes_nothing(tmp_path):
    path = tmp_path / "a.json"
    assert records.write_once(path, {"value": 1})
    assert not records.write_once(path, {"value": 2})
    assert json.loads(path.read_text()) == {"value": 1}


def test_commit_names_this_checkout():
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    short = records.commit().removesuffix("-dirty")
    assert head.startswith(short)
    assert bool(short) == bool(head)
