"""Text and tables: whole or not at all."""

from __future__ import annotations

import os

import pytest

from reprior.io import read_rows, write_rows, write_text


def test_rows_come_back_as_text(tmp_path):
    rows = [
        {"task": "oup", "mean": 1 / 3, "note": 'a "word", and a line\nmore'},
        {"task": "turin", "mean": 2, "note": ""},
    ]
    path = write_rows(rows, tmp_path / "new" / "rows.csv", digits=4)
    assert read_rows(path) == [
        {"task": "oup", "mean": "0.3333", "note": 'a "word", and a line\nmore'},
        {"task": "turin", "mean": "2", "note": ""},
    ]
    assert read_rows(write_rows(rows[:1], path))[0]["mean"] == repr(1 / 3)
    assert b"\r" not in path.read_bytes()
    assert read_rows(tmp_path / "none.csv") == []


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path, monkeypatch):
    path = write_text(tmp_path / "page.md", "old")

    def fail(*arguments):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["page.md"]
