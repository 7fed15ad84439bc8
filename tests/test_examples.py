"""The examples run, and what the demo calls exact is exact."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["P", "Q"])
def test_the_exact_posterior_of_the_demo_is_that_of_weighted_prior_draws(demo, name):
    prior = getattr(demo, name)
    generator = torch.Generator().manual_seed(0)
    x = torch.poisson(demo.expected_counts(demo.TRUTH), generator=generator)[0]
    theta = prior.mean + prior.stddev * torch.randn(400_000, 2, generator=generator)
    log_w = torch.distributions.Poisson(demo.expected_counts(theta).double()).log_prob(x.double()).sum(1)
    w = torch.softmax(log_w, 0)
    mean = w @ theta.double()
    sd = (w @ (theta - mean).square()).sqrt()
    found, found_sd, _ = demo.exact_posterior(prior, x)
    error = 5 * float(w.square().sum()) ** 0.5  # five standard errors of the weighted mean, in sd
    assert error < 0.1
    assert float(((found - mean) / sd).abs().max()) < error
    assert float((found_sd / sd - 1).abs().max()) < error


def test_the_demo_runs_in_short(demo, tmp_path, monkeypatch, capsys):
    arguments = ["--simulations", "8000", "--steps", "400", "--draws", "2000"]
    monkeypatch.setattr(sys, "argv", ["demo.py", "--out", str(tmp_path), *arguments])
    state = torch.get_rng_state()
    demo.main()
    torch.set_rng_state(state)
    out = capsys.readouterr().out
    assert "verdict:" in out
    rows = re.findall(r"^q .* ([+-][\d.]+) sd +([\d.]+)$", out, re.MULTILINE)
    assert len(rows) == 2
    for off, ratio in rows:  # the full demo is within .1 and 5 %; 400 steps leave some tenths
        assert abs(float(off)) < 0.6
        assert 0.7 < float(ratio) < 1.4
    assert (tmp_path / "demo.png").stat().st_size > 20_000
    assert (tmp_path / "report.html").stat().st_size > 10_000
