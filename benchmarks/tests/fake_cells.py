"""A cell that takes no time to compute: it notes its start, waits, and writes its record as the real ones do."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from reprior_bench.bases import BaseSpec
from reprior_bench.records import write_once


@dataclass(frozen=True)
class FakeCell:
    """Does `what`: "work" waits and writes; "fail" raises; "die" kills its process, the first time; "kill" always."""

    number: int
    what: str = "work"
    seconds: float = 0.0
    task: str = "oup"
    regime: str = "id"
    preset: str = "best"
    method: str = "base"
    needs_base: bool = False

    @property
    def name(self) -> str:
        return f"cell{self.number}"

    @property
    def base(self) -> BaseSpec | None:
        return BaseSpec(self.task, self.regime, steps=1) if self.needs_base else None

    def done(self, folder: Path) -> bool:
        return (folder / "cells" / f"{self.name}.json").exists()

    def execute(self, folder: Path, bases: Path) -> Path:
        starts = folder / "starts" / self.name
        starts.mkdir(parents=True, exist_ok=True)
        first = not any(starts.iterdir())
        (starts / str(os.getpid())).touch()
        if self.what == "fail":
            raise ZeroDivisionError(f"{self.name} divides by zero")
        if self.what == "kill" or (self.what == "die" and first):
            os._exit(9)
        time.sleep(self.seconds)
        path = folder / "cells" / f"{self.name}.json"
        write_once(path, {"number": self.number, "pid": os.getpid()})
        return path


def starts_of(folder: Path, cell: FakeCell) -> list[int]:
    """The processes that began a cell."""
    path = folder / "starts" / cell.name
    return [int(p.name) for p in path.iterdir()] if path.exists() else []
