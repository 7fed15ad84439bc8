"""Skips where an optional extra is not installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

__all__ = ["needs_pytransit"]


def needs_pytransit() -> None:
    """Skips the test or the module where pytransit is missing, without importing it: `reprior_transits` knows how."""
    if find_spec("pytransit") is None:
        pytest.skip("the extra reprior[lightcurve] is not installed", allow_module_level=True)
