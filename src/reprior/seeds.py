"""Seeds: checking one, choosing one, and running code whose random numbers come from the global states.

    check_seed(seed) -> int       a seed that a user gave, checked
    fresh_seed() -> int           a seed for a user who gave none; it follows torch.manual_seed
    with seeded(seed): ...        the global random states of torch, numpy and Python follow the seed, and are put back

reprior's own code draws from a `torch.Generator` that it makes from a seed, and leaves the global states alone. `seeded`
is for what can only draw from the global ones: new layers of a network, torch's distributions, a user's prior,
simulator or dropout layer, and sbi.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
import torch

from reprior.errors import InputError

__all__ = ["check_seed", "fresh_seed", "seeded"]


def check_seed(seed: Any) -> int:
    """A seed that was given, checked.

    Arguments:
        seed: An integer of 0 or more.
    """
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise InputError(f"seed must be an integer of 0 or more; got {seed!r}")
    return int(seed)


def fresh_seed() -> int:
    """A seed from torch's global random state: another one at each call, the same ones after torch.manual_seed."""
    return int(torch.randint(2**62, ()))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds the global random states of torch (CPU and GPU), numpy and Python, and restores them at the end.

    Threads share these states: code that runs in several threads must hold a lock of its own for the duration.

    Arguments:
        seed: An integer of 0 or more.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
        try:
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            random.seed(seed)
            yield
        finally:
            random.setstate(state)
            np.random.set_state(numpy_state)  # noqa: NPY002
