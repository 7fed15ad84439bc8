"""Two versions side by side."""

from __future__ import annotations

import math

import pytest
from synthetic import write_records, write_refusal

from reprior_bench.compare import compare


def test_jobs_that_both_have_are_paired(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    write_records(before, "nre", [[0.5, 0.6]], "c2st_fast", seed=30_000)
    write_records(after, "nre", [[0.52, 0.64]], "c2st_fast", seed=30_000)
    write_records(before, "sir", [[0.5, 0.6]], "c2st_fast", seed=30_000)  # of one version alone
    write_records(before, "auto", [[0.5]], "c2st_fast")  # of another seed
    write_records(after, "auto", [[0.5]], "c2st_fast")
    write_refusal(before, "transport", "no")
    write_refusal(after, "transport", "no")
    (row,) = compare(before, after, 30_000)
    assert (row["task"], row["regime"], row["method"], row["chosen"]) == ("oup", "id", "nre", "nre")
    assert (row["before"], row["after"], row["difference"]) == pytest.approx((0.55, 0.58, 0.03))
    # Two fractions of 10,000 rows each, about .565, over two observations.
    assert row["error"] == pytest.approx(math.sqrt(2 * 0.565 * 0.435 / 10_000 / 2))
