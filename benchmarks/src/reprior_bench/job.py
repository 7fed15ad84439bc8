"""A job: one measurement of the benchmark. It leaves one record in the table of its part."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from reprior.errors import RefusedError
from reprior_bench.bases import BaseSpec, fingerprint_of
from reprior_bench.store import Record, name_of

__all__ = ["Job", "execute"]


@dataclass(frozen=True)
class Job(ABC):
    """What is measured. The attributes of a job are what tells it from the others of its part.

    Attributes:
        part: the table that its record goes to.
    """

    part: ClassVar[str]

    @property
    def key(self) -> dict[str, Any]:
        """What tells it from others, as plain data."""
        return asdict(self)

    @property
    def name(self) -> str:
        """The key as text: what tells it from other jobs of its part."""
        return name_of(self.key)

    @property
    def label(self) -> str:
        """Its part and its name: what tells it from all other jobs."""
        return f"{self.part} {self.name}"

    @property
    def base(self) -> BaseSpec | None:
        """The base that it stands on, or None."""
        return None

    def done(self, record: Record | None, bases: Path) -> bool:
        """Whether a record is all that is asked for, and of the base that is in the folder of bases now, if one is."""
        if record is None:
            return False
        here = "" if self.base is None else fingerprint_of(self.base, bases)
        return "" in (here, record["base"]) or here == record["base"]

    @abstractmethod
    def measure(self, bases: Path, cache: Path) -> dict[str, Any]:
        """The measurement as plain data.

        Arguments:
            bases: the folder of the bases.
            cache: a folder for what several jobs need and one can make again.
        """


def execute(job: Job, bases: Path, cache: Path, commit: str) -> Record:
    """Runs a job with one torch thread and returns its record. A method that refuses its task is a result."""
    torch.set_num_threads(1)  # on busy cores two threads of one process are slower than one
    began = time.monotonic()
    try:
        found = {"refused": "", **job.measure(bases, cache)}
    except RefusedError as error:
        found = {"refused": str(error), "rows": []}
    base = "" if job.base is None else fingerprint_of(job.base, bases)
    return {"job": job.key, "commit": commit, "base": base, "seconds": time.monotonic() - began, **found}
