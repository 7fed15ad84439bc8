"""Results on disk: one JSON file per cell, whole or not at all, and never written twice (but to add slow metrics).

A record is first written beside its place and then linked into it. The link fails where there is a record already, so
of two workers that ran the same cell (one was thought lost) the first one's record stays.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from pathlib import Path
from typing import Any

from reprior.errors import FileFormatError

__all__ = ["commit", "read_record", "write_once"]


def write_once(path: Path, data: Any, replace: bool = False) -> bool:
    """Writes JSON data atomically, unless the file exists and is not to be replaced. Returns whether it was written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    partial.write_text(json.dumps(data, indent=1))
    if replace:
        os.replace(partial, path)
        return True
    try:
        os.link(partial, path)
    except FileExistsError:
        partial.unlink()
        return False
    except OSError:  # a file system without links: not proof against two workers at one moment, but nothing is lost
        if path.exists():
            partial.unlink()
            return False
        os.replace(partial, path)
        return True
    partial.unlink()
    return True


def read_record(path: Path) -> dict[str, Any]:
    """A cell's record."""
    try:
        record = json.loads(path.read_text())
    except ValueError as error:  # no JSON, or no text
        raise FileFormatError(
            f"{path} is no record of the benchmark: {error}. Remove it to run its cell again"
        ) from None
    if not isinstance(record, dict) or not {"cell", "commit"} <= set(record):
        raise FileFormatError(
            f"{path} is no record of the benchmark: it names no cell or no commit. Move it out of the folder"
        )
    return record


def commit() -> str:
    """The short commit of this package's sources, with "-dirty" where they were changed; empty outside a checkout."""
    here = Path(__file__).parent
    if not _git(here, "ls-files", Path(__file__).name):
        return ""
    dirty = _git(here, "status", "--porcelain", "--", "..")
    return _git(here, "rev-parse", "--short", "HEAD") + ("-dirty" if dirty else "")


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.SubprocessError):  # no git, or none in time
        return ""
    return done.stdout.strip()
