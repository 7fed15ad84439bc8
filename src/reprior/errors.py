"""The errors that reprior raises, so that callers can catch them by kind."""

from __future__ import annotations

__all__ = ["FileFormatError", "InputError", "RefusedError", "RepriorError", "SupportError"]


class RepriorError(Exception):
    """The base class of all errors that reprior raises itself."""


class InputError(RepriorError, ValueError):
    """A value that cannot be used; the message names it and what is allowed."""


class RefusedError(InputError):
    """A change of prior that a method cannot make; the message says why, and often which method can."""


class SupportError(InputError):
    """The target prior has mass where the prior has none."""


class FileFormatError(RepriorError):
    """A file that is truncated, foreign, altered, or of a newer format version."""
