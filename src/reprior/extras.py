"""Optional dependencies: the error for a missing one names the extra that installs it."""

from __future__ import annotations

import importlib
from types import ModuleType

from reprior.errors import RepriorError

__all__ = ["MissingExtraError", "need"]


class MissingExtraError(RepriorError, ImportError):
    """An optional dependency is not installed; the message names the extra that installs it."""


def need(module: str, extra: str, what: str) -> ModuleType:
    """Imports a module that reprior does not install by itself.

    Arguments:
        module: the module, such as "arviz_base".
        extra: the extra of reprior that installs it, such as "arviz".
        what: what needs it, for the message.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # the module is there, and something that it needs is not
        raise MissingExtraError(
            f"{what} needs {module}, which is not installed: pip install 'reprior[{extra}]'"
        ) from error
