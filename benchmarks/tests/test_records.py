"""Tables of records: appended whole, the last one of a job counts, half a line is no record."""

from __future__ import annotations

import subprocess

import pytest

from reprior.errors import FileFormatError
from reprior_bench.store import Table, commit
from reprior_bench.tables import summarise


def record(number: int, **found) -> dict:
    return {"job": {"task": "oup", "number": number}, "base": "", **found}


def test_records_come_back_by_the_name_of_their_job_in_the_order_of_the_file(tmp_path):
    table = Table(tmp_path, "fake")
    assert table.records() == {}
    for number in (2, 1):
        table.append(record(number, value=0.1 * number))
    assert table.records() == {"oup-2": record(2, value=0.2), "oup-1": record(1, value=0.1)}
    assert (tmp_path / "fake.jsonl").read_text().count("\n") == 2


def test_the_last_record_of_a_job_counts(tmp_path):
    table = Table(tmp_path, "fake")
    for value in (1, 2):
        table.append(record(0, value=value))
    assert table.records() == {"oup-0": record(0, value=2)}


def test_a_line_that_a_crash_cut_short_is_no_record_and_the_next_one_takes_its_place(tmp_path):
    table = Table(tmp_path, "fake")
    table.append(record(0))
    with table.path.open("a") as stream:
        stream.write('{"job": {"task": "oup", "num')
    assert list(table.records()) == ["oup-0"]
    table.append(record(1))
    assert list(table.records()) == ["oup-0", "oup-1"]


@pytest.mark.parametrize("line", ['{"job": {', '{"hello": 1}', "[1, 2]", "", '{"job": 3}'])
def test_what_is_no_record_is_named_by_its_line(tmp_path, line):
    table = Table(tmp_path, "posterior")
    table.append(record(0))
    table.path.write_text(table.path.read_text() + line + "\n")
    for read in (table.records, lambda: summarise(tmp_path)):
        with pytest.raises(FileFormatError, match=r"line 2 of .*posterior\.jsonl is no record of the benchmark"):
            read()


def test_commit_names_this_checkout():
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    short = commit().removesuffix("-dirty")
    assert head.startswith(short)
    assert bool(short) == bool(head)
