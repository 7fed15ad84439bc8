"""Fingerprints: equal values give equal text, and whatever differs gives another one."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from reprior.errors import InputError
from reprior.fingerprint import fingerprint, plain


@dataclass(frozen=True)
class One:
    a: int
    b: tuple[float, ...] = (0.1, 0.2)


@dataclass(frozen=True)
class Other:
    a: int
    b: tuple[float, ...] = (0.1, 0.2)


DIFFERENT = [
    None,
    0,
    1,
    1.0,
    True,
    "1",
    "",
    [],
    [[]],
    [1],
    [1, 1],
    ["1"],
    {},
    {"a": 1},
    {"b": 1},
    {"a": {"b": 1}},
    math.nan,
    math.inf,
    math.nextafter(0.1, 1),
    0.1,
    One(1),
    One(2),
    One(1, (0.1,)),
    Other(1),
    torch.zeros(2),
    torch.zeros(2, 1),
    torch.zeros(2, dtype=torch.float64),
    torch.zeros(2, dtype=torch.int32),
    torch.tensor([0.0, torch.finfo(torch.float32).tiny]),
    torch.tensor([0.0, math.nan]),
    torch.zeros(0),
    torch.zeros(()),
]


def test_different_values_have_different_fingerprints():
    texts = [fingerprint(value) for value in DIFFERENT]
    assert len(set(texts)) == len(texts)
    assert all(len(text) == 16 and set(text) <= set("0123456789abcdef") for text in texts)
    assert len({fingerprint("ab", "c"), fingerprint("a", "bc"), fingerprint("abc"), fingerprint(["ab", "c"])}) == 4


def test_equal_values_have_equal_fingerprints():
    array = np.arange(6.0).reshape(2, 3)
    tensor = torch.from_numpy(array)
    assert fingerprint(array) == fingerprint(tensor) == fingerprint(tensor.T.contiguous().T)
    assert fingerprint(tensor.clone().requires_grad_(True)) == fingerprint(tensor)
    assert fingerprint({"a": 1, "b": (2, 3)}) == fingerprint({"b": [2, 3], "a": 1})
    assert fingerprint(np.float64(0.1), np.int64(3), np.bool_(True)) == fingerprint(0.1, 3, True)
    assert fingerprint(Path("a") / "b") == fingerprint("a/b")
    assert fingerprint(math.nan) == fingerprint(float("nan"))
    assert fingerprint(torch.ones(3, dtype=torch.bfloat16)) == fingerprint(torch.ones(3, dtype=torch.bfloat16))


def test_it_is_the_same_on_every_machine_and_in_every_process():
    # Folders of results are read again by later processes: here is the definition, written out.
    tensor = hashlib.sha256(struct.pack("<2f", 1.0, 2.0)).hexdigest()
    text = f'[{{"seed":1,"x":{{"sha256":"{tensor}","shape":[2],"tensor":"float32"}}}},"nre"]'
    expected = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert fingerprint({"seed": 1, "x": torch.tensor([1.0, 2.0])}, "nre") == expected


def test_more_digits_begin_with_the_fewer():
    assert fingerprint("a", digits=64).startswith(fingerprint("a"))
    assert len(fingerprint("a", digits=64)) == 64


def test_plain_data_is_the_same_after_a_file():
    data = plain({"a": (1, 2.5), "b": One(3), "c": torch.ones(2), "d": None})
    assert json.loads(json.dumps(data)) == data
    assert plain(data) == data


@pytest.mark.parametrize("value", [object(), lambda: 0, {1, 2}, {1: 2}, One])
def test_values_that_differ_from_run_to_run_are_refused(value: object):
    with pytest.raises(InputError, match="fingerprint"):
        fingerprint([value])
