"""Records are written once, whole."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from reprior_bench import records
from reprior_bench.tables import summarise
from reprior.errors import FileFormatError


def test_of_many_writers_exactly_one_wins(tmp_path):
    path = tmp_path / "cells" / "a.json"
    with ThreadPoolExecutor(8) as pool:
        wrote = list(pool.map(lambda i: records.write_once(path, {"cell": i, "commit": "x" * 10_000}), range(16)))
    assert sum(wrote) == 1
    assert records.read_record(path)["cell"] == wrote.index(True)
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_a_second_write_changes_nothing(tmp_path):
    path = tmp_path / "a.json"
    assert records.write_once(path, {"value": 1})
    assert not records.write_once(path, {"value": 2})
    assert json.loads(path.read_text()) == {"value": 1}


def test_a_file_system_without_links_loses_nothing(tmp_path, monkeypatch):
    def refused(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(records.os, "link", refused)
    path = tmp_path / "a.json"
    assert records.write_once(path, {"value": 1})
    assert not records.write_once(path, {"value": 2})
    assert json.loads(path.read_text()) == {"value": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("text", ['{"cell": {', '{"hello": 1}', "[1, 2]", ""])
def test_what_is_no_record_is_named(tmp_path, text):
    path = tmp_path / "cells" / "a.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(FileFormatError, match=r"a\.json is no record of the benchmark"):
        records.read_record(path)
    with pytest.raises(FileFormatError, match=r"a\.json is no record of the benchmark"):
        summarise(tmp_path)


def test_commit_names_this_checkout():
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    short = records.commit().removesuffix("-dirty")
    assert head.startswith(short)
    assert bool(short) == bool(head)
