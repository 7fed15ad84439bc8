"""Diagnostics: can an adapted posterior be trusted? (being rewritten: `c2st` only, for the moment)"""

from __future__ import annotations

from reprior.diagnostics.c2st import c2st

__all__ = ["c2st"]
