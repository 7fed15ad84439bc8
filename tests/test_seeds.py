"""Seeds: the global random states follow one inside `seeded`, and are what they were after it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from reprior.errors import InputError
from reprior.seeds import check_seed, fresh_seed, seeded


def draws() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()  # noqa: NPY002


def test_all_three_states_follow_the_seed():
    with seeded(3):
        first = draws()
    draws()
    with seeded(3):
        assert draws() == first
    with seeded(4):
        assert all(a != b for a, b in zip(draws(), first, strict=True))


def test_all_three_states_are_put_back():
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    undisturbed = [draws() for _ in range(3)]
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    seen = [draws()]
    with seeded(5):
        draws()
        with seeded(6):
            draws()
    seen.append(draws())
    with pytest.raises(ZeroDivisionError), seeded(7):
        raise ZeroDivisionError(draws())
    seen.append(draws())
    assert seen == undisturbed


def test_large_seeds_serve_all_three():
    with seeded(2**62):
        first = draws()
    with seeded(2**62):
        assert draws() == first


def test_fresh_seeds_follow_torch_and_differ():
    torch.manual_seed(1)
    first = [fresh_seed() for _ in range(3)]
    torch.manual_seed(1)
    assert [fresh_seed() for _ in range(3)] == first
    assert len(set(first)) == 3
    assert all(check_seed(seed) == seed for seed in first)


def test_seeds_of_numpy_are_taken_and_others_refused():
    assert check_seed(np.int64(4)) == 4
    assert type(check_seed(np.int64(4))) is int
    for bad in (-1, 1.5, "1", None, True):
        with pytest.raises(InputError, match="seed must be an integer of 0 or more"):
            check_seed(bad)
