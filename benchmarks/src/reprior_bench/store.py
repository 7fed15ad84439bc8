"""Records on disk: one table for each part of the benchmark, a text file with one JSON object in each line.

A record is appended in one write when its job is done, so a run that was killed goes on where it stopped. A job that is
measured again (because its base was trained again, or because a metric was missing) is appended again, and its last
record counts. A line that a crash left unfinished is taken off before the next one is written.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reprior.errors import FileFormatError

__all__ = ["Record", "Table", "commit"]

Record = dict[str, Any]


class Table:
    """The records of one part, each known by the job that it is of.

    Arguments:
        folder: where results are.
        part: the part; its table is ``folder/part.jsonl``.
    """

    def __init__(self, folder: str | Path, part: str):
        self.path = Path(folder) / f"{part}.jsonl"

    def records(self) -> dict[str, Record]:
        """The last record of each job, by the name of the job."""
        found: dict[str, Record] = {}
        if not self.path.exists():
            return found
        lines = self.path.read_text(encoding="utf-8").split("\n")
        for number, line in enumerate(lines[:-1], start=1):  # what follows the last line break is unfinished
            try:
                record = json.loads(line)
                found[name_of(record["job"])] = record
            except (ValueError, KeyError, TypeError, AttributeError):
                raise FileFormatError(
                    f"line {number} of {self.path} is no record of the benchmark: remove it, to run its job again"
                ) from None
        return found

    def append(self, record: Record) -> None:
        """Adds a record in one write."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            whole = self.path.read_bytes().rfind(b"\n") + 1
            os.truncate(self.path, whole)
        with open(self.path, "ab", buffering=0) as stream:
            stream.write((json.dumps(record) + "\n").encode())
            os.fsync(stream.fileno())


def name_of(job: Mapping[str, Any]) -> str:
    """The name of a job from what tells it from others."""
    return "-".join(str(value) for value in job.values())


def commit() -> str:
    """The short commit of the sources, with "-dirty" where they were changed; empty outside a checkout."""
    here = Path(__file__).parent
    if not _git(here, "ls-files", Path(__file__).name):
        return ""
    root = Path(_git(here, "rev-parse", "--show-toplevel"))
    changed = _git(root, "status", "--porcelain", "--", "src", "benchmarks/src")
    return _git(root, "rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.SubprocessError):  # no git, or none in time
        return ""
    return done.stdout.strip()
