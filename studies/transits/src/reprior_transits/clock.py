"""How long each part of a study took."""

from __future__ import annotations

import time
from pathlib import Path

from reprior.io import read_rows

__all__ = ["Clock"]


class Clock:
    """Seconds of each part of a study."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self.last = time.monotonic()

    def note(self, name: str) -> None:
        """The part that ends now."""
        now = time.monotonic()
        self.parts[name] = now - self.last
        self.last = now

    def seconds(self, table: Path) -> dict[str, float]:
        """Of each part, as rows of the table of checks.

        Arguments:
            table: the table of an earlier run, if there was one. A part whose files are only read this time keeps the
                seconds that it took then.
        """
        rows = {row["check"]: row["value"] for row in read_rows(table)}
        earlier = {name: float(value) for name, value in rows.items() if name.startswith("seconds_")}
        now = {f"seconds_{name.replace(' ', '_')}": round(value, 1) for name, value in self.parts.items()}
        return {name: max(value, earlier.get(name, 0.0)) for name, value in now.items()}
