"""Arrays and tables of users."""

from __future__ import annotations

from typing import Any

__all__ = ["as_array"]


def as_array(value: Any) -> Any:
    """A table of pandas or polars as a numpy array; anything else as it is."""
    return value.to_numpy() if hasattr(value, "to_numpy") else value
