"""One resumable store: a folder of results, each in a file that is named by everything the result depends on.

    store = Store(folder, "draws")
    kept = store.get(key)                       the result (an `io.File`: tensors and meta), or None
    store.put(key, tensors, meta) -> File       writes a result, whole or not at all, and returns it
    store.warn_if_other(key)                    warns where the folder holds results of other settings only

A key is a dictionary of settings, numbers and tensors: whatever changes the result (data, seed, settings, base). Another
key is another file, so a result is never used for a question that it does not answer, and several runs, of several
kinds, can share a folder. A file that is damaged is thrown away with a warning, and its result is made again.

Usual code:

    kept = store.get(key)
    if kept is None:
        kept = store.put(key, {"theta": make()})
    theta = kept.tensors["theta"]
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from reprior import io
from reprior.errors import FileFormatError, InputError
from reprior.fingerprint import fingerprint, plain

__all__ = ["Store"]

_COMPARED = 1_000  # files that a warning compares with the key at most, so that it takes a tenth of a second


class Store:
    """A folder of results of one kind.

    Arguments:
        folder: The folder; it is made when the first result is written.
        kind: What the results are, e.g. "draws": the first part of the name of their files.
    """

    def __init__(self, folder: str | os.PathLike[str], kind: str):
        self.folder, self.kind = Path(folder), kind
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"folder is {self.folder}, which is a file: give the path of a folder")

    def path(self, key: Mapping[str, Any]) -> Path:
        """The file of a result, written or not.

        Arguments:
            key: All that the result depends on.
        """
        return self.folder / f"{self.kind}-{fingerprint(io.FORMAT_VERSION, key)}{io.SUFFIX}"

    def get(self, key: Mapping[str, Any]) -> io.File | None:
        """A result that was written; None if there is none, or if its file is damaged (it is removed, with a warning).

        Arguments:
            key: All that the result depends on.
        """
        path = self.path(key)
        try:
            file = io.read(path, self.kind)
            return io.File(file.kind, file.tensors, file.meta["result"])
        except FileNotFoundError:
            return None
        except (FileFormatError, KeyError) as error:
            path.unlink(missing_ok=True)
            warnings.warn(f"a damaged file was removed, and its result is made again: {error}", stacklevel=2)
            return None

    def put(
        self, key: Mapping[str, Any], tensors: Mapping[str, Tensor], meta: Mapping[str, Any] | None = None
    ) -> io.File:
        """Writes a result, whole or not at all, over an earlier one with this key; returns it as `get` would.

        Arguments:
            key: All that the result depends on.
            tensors: Its tensors.
            meta: Its plain data.
        """
        held = dict(meta or {})
        io.write(self.path(key), self.kind, tensors, {"key": plain(key), "result": held})
        return io.File(self.kind, dict(tensors), plain(held))

    def warn_if_other(self, key: Mapping[str, Any]) -> None:
        """Warns where there is no result for a key, but there are results for other keys, and says how they differ.

        Arguments:
            key: All that the result depends on.
        """
        if self.path(key).exists():
            return
        wanted, differences = plain(key), []
        for path in islice(self.folder.glob(f"{self.kind}-*{io.SUFFIX}"), _COMPARED):
            try:
                there = io.header_of(path)["meta"]["key"]
            except (FileFormatError, FileNotFoundError, KeyError):
                continue
            names = sorted(name for name in {*there, *wanted} if there.get(name) != wanted.get(name))
            differences.append(names)
        if differences:
            nearest = min(differences, key=len)
            warnings.warn(
                f"{self.folder} holds results ({self.kind}) of other settings only, and they are not used; the nearest "
                f"ones differ in: {', '.join(nearest)}",
                stacklevel=3,
            )
