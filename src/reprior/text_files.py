"""Text and tables on disk, written whole or not at all: a reader never sees half a file, nor a killed run leaves one."""

from __future__ import annotations

import csv
import io
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["read_rows", "write_rows", "write_text"]


def write_text(path: str | Path, text: str) -> Path:
    """Writes a text file and returns its path; missing folders are created."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    try:
        partial.write_text(text, encoding="utf-8", newline="")
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def write_rows(rows: Sequence[Mapping[str, Any]], path: str | Path, digits: int | None = None) -> Path:
    """Writes rows of one kind as CSV and returns its path.

    Arguments:
        rows: at least one; the first one names the columns.
        path: the file.
        digits: how many decimals a float has; all of them if None.
    """
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.{digits}f}" if digits and isinstance(v, float) else v for k, v in row.items()})
    return write_text(path, stream.getvalue())


def read_rows(path: str | Path) -> list[dict[str, str]]:
    """The rows of a CSV file; none if it does not exist."""
    if not Path(path).exists():
        return []
    with open(path, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))
