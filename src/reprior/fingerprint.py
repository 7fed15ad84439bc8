"""One fingerprint for everything: a short text that tells one value from another.

    fingerprint(*parts, digits=16) -> str      the start of a SHA-256 hash
    plain(value) -> JSON-ready data            what the hash is made of; a tensor is replaced by its own hash

The same value gives the same text on every machine: a number counts with all its digits, a tensor with its type, shape
and bytes, a dataclass with its name and fields. For a distribution, which machines round differently and which may be
any object, see `reprior.priors.fingerprint`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from os import PathLike, fspath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reprior.errors import InputError

__all__ = ["fingerprint", "plain"]


def fingerprint(*parts: Any, digits: int = 16) -> str:
    """A hash of values, as text; parts that are equal, and in the same order, give the same text.

    Arguments:
        parts: Tensors, arrays, dataclasses, and plain data (dictionaries with text keys, lists, numbers, text, None).
        digits: Number of hexadecimal digits, at most 64. With 16, a million values have the same one with probability
            3e-8.
    """
    text = json.dumps([plain(part) for part in parts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def plain(value: Any) -> Any:
    """JSON-ready data that stands for a value; equal values give equal data, also after being written and read.

    Arguments:
        value: As in `fingerprint`. Tuples become lists, and tensors a record of their type, shape and hash.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        kind, shape = str(value.dtype).removeprefix("torch."), list(value.shape)
        return {"tensor": kind, "shape": shape, "sha256": hashlib.sha256(data).hexdigest()}
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise InputError(f"a fingerprint needs dictionaries with text keys; got the keys {list(value)[:5]}")
        return {key: plain(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        held = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        return {"class": type(value).__name__, "fields": held}
    raise InputError(f"a {type(value).__name__} has no fingerprint: give tensors, dataclasses or plain data")
