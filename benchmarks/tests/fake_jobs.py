"""Jobs that take no time to compute: they note their start, wait, and give a record as the real ones do."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reprior.errors import RefusedError
from reprior_bench.bases import BaseSpec
from reprior_bench.job import Job


@dataclass(frozen=True)
class FakeJob(Job):
    """Does `what`: "work" waits and is done; "fail" raises; "refuse" refuses; "kill" kills its process."""

    part = "fake"

    number: int
    what: str = "work"
    seconds: float = 0.0
    task: str = ""

    @property
    def key(self) -> dict[str, Any]:
        return {"number": self.number}

    @property
    def base(self) -> BaseSpec | None:
        return BaseSpec(self.task, "id") if self.task else None

    def measure(self, bases: Path, cache: Path) -> dict[str, Any]:
        starts = cache / "starts" / str(self.number)
        starts.mkdir(parents=True, exist_ok=True)
        (starts / str(os.getpid())).touch()
        if self.what == "fail":
            raise ZeroDivisionError(f"job {self.number} divides by zero")
        if self.what == "refuse":
            raise RefusedError(f"job {self.number} cannot be done")
        if self.what == "kill":
            os._exit(9)
        time.sleep(self.seconds)
        return {"pid": os.getpid()}


def starts_of(results: Path, job: FakeJob) -> list[int]:
    """The processes that began a job."""
    path = results / "cache" / "starts" / str(job.number)
    return [int(p.name) for p in path.iterdir()] if path.exists() else []
