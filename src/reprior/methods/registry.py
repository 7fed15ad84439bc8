"""The methods by name.

A library method is one line in `reprior/methods/__init__.py`; a method of another package registers itself with the same
function. A file names the method that it holds, so that package must be imported before the file is loaded.
"""

from __future__ import annotations

from typing import TypeVar

from reprior.errors import InputError
from reprior.methods.method import Method

__all__ = ["find", "register", "registered"]

_METHODS: dict[str, type[Method]] = {}
M = TypeVar("M", bound=type[Method])


def register(method: M) -> M:
    """Makes a method known by its name; also a class decorator.

    Arguments:
        method: a subclass of `Method` with a ``name``.
    """
    name = getattr(method, "name", None)
    if not isinstance(method, type) or not issubclass(method, Method) or not isinstance(name, str) or not name:
        raise InputError(f"register takes a subclass of reprior.methods.Method that has a name; got {method!r}")
    known = _METHODS.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (method.__module__, method.__qualname__):
        raise InputError(f"a method {name!r} is registered already: {known.__module__}.{known.__qualname__}")
    _METHODS[name] = method
    return method


def registered() -> dict[str, type[Method]]:
    """Every method by name."""
    return dict(_METHODS)


def find(name: str) -> type[Method]:
    """The class of a method."""
    if name not in _METHODS:
        raise InputError(f"method {name!r} is unknown; registered: {', '.join(_METHODS)}")
    return _METHODS[name]
