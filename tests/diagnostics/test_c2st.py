"""The classifier two-sample test, with and without weights."""

from __future__ import annotations

import math

import pytest
import torch

from reprior.diagnostics.c2st import c2st
from reprior.errors import InputError


def gap(by: float, n: int, m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two sets of standard normal samples, one moved along the first axis."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(n, 2, generator=generator), torch.randn(m, 2, generator=generator)
    b[:, 0] += by
    return a, b


@pytest.mark.parametrize("by", [0.0, 1.0, 2.0])
def test_accuracy_is_that_of_the_best_classifier(by):
    # The Bayes accuracy is Phi(by / 2). Standard error of 3,000 held-out labels: .009; four of them, and trees lose a little.
    best = 0.5 * (1 + math.erf(by / 2 / math.sqrt(2)))
    assert best - 0.055 < c2st(*gap(by, 1_500, 1_500)) < best + 0.036


def test_the_larger_set_gives_no_advantage_without_weights():
    assert abs(c2st(*gap(0.0, 3_000, 600)) - 0.5) < 0.06  # 1,200 labels: standard error .014; four of them


def test_scale_and_place_do_not_matter():
    a, b = gap(1.0, 600, 600)
    assert c2st(a, b) == c2st(64 * a + 512, 64 * b + 512)  # powers of two: the same bits


def test_weighted_classifier_sees_weights():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(3_000, 2, generator=generator), torch.randn(1_500, 2, generator=generator)
    b[:, 0] += 1.0
    flat, tilt = torch.zeros(len(a)), a[:, 0] - 0.5  # tilt turns N(0, 1) into N(1, 1)
    # Standard error with about 1,100 effective samples a side: .25 sqrt(2 / 1100) = .011; the margin is four of them.
    assert abs(c2st(a, b, tilt) - 0.5) < 0.045
    # Unweighted, the Bayes accuracy is Phi(1/2) = .69.
    assert c2st(a, b, flat) > 0.64


def test_rows_without_weight_do_not_count():
    a, b = gap(1.0, 1_000, 800)
    junk = torch.full((500, 2), 9.0)
    log_w = torch.cat([torch.zeros(1_000), torch.full((500,), -math.inf)])
    # The junk moves the levels that the trees see, and the folds: 1,800 labels, standard error .011; four of them.
    assert abs(c2st(torch.cat([a, junk]), b, log_w) - c2st(a, b, torch.zeros(1_000))) < 0.045


@pytest.mark.parametrize(
    ("a", "b", "log_wa", "said"),
    [
        (torch.zeros(9), torch.zeros(9, 1), None, "a needs shape"),
        (torch.zeros(9, 1), torch.zeros(3, 1), None, "b needs shape"),
        (torch.zeros(9, 1), torch.zeros(9, 2), None, "same dimension"),
        (torch.full((9, 1), math.nan), torch.zeros(9, 1), None, "a has 9 rows with NaN"),
        (torch.zeros(9, 1), torch.zeros(9, 1), torch.zeros(8), "log_wa needs shape"),
        (torch.zeros(9, 1), torch.zeros(9, 1), torch.full((9,), -math.inf), "one that is finite"),
    ],
)
def test_what_cannot_be_compared_is_refused(a, b, log_wa, said):
    with pytest.raises(InputError, match=said):
        c2st(a, b, log_wa)
