"""A run that is killed goes on at the last finished observation, and gives what an unbroken one gives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from exact import gaussian_posterior
from torch.distributions import MultivariateNormal

import reprior
from reprior.diffusion.sampler import Sampler
from reprior.fingerprint import fingerprint
from reprior.loading import adapted_parts, rebuild_adapted
from reprior.methods.rejuvenate import RejuvenateSettings
from reprior.networks.simformer import SimformerSettings
from reprior.sequential.settings import AccumulateSettings

POSTERIOR, _ = gaussian_posterior(dim=2, c=0.3, rho=0.4, noise="diagonal")
X = torch.randn(3, 2, generator=torch.Generator().manual_seed(5))
QUICK = AccumulateSettings(points=100, checks=20, moves=5, rejuvenate=RejuvenateSettings(pool=500))

# The third observation is reached, and there the process waits to be killed.
SCRIPT = """
import sys, time, torch
torch.set_num_threads(1)
from test_resume import POSTERIOR, X, QUICK
from reprior.sequential import run as module

finished = module._step

def step(posterior, run, n, *rest):
    if n == 3:
        print("third", flush=True)
        time.sleep(120)
    return finished(posterior, run, n, *rest)

module._step = step
module.update(POSTERIOR, X, settings=QUICK, samples=300, folder=sys.argv[1], progress=False)
"""


def go(folder: Path | None, **change) -> reprior.Updates:
    arguments = {"settings": QUICK, "samples": 300, "folder": folder, "progress": False, **change}
    return reprior.update(POSTERIOR, change.pop("x", X), **{k: v for k, v in arguments.items() if k != "x"})


def test_a_killed_run_goes_on(tmp_path, monkeypatch):
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "third"
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
    finally:
        process.kill()
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("update-*.safetensors")}
    assert len(before) == 2
    resumed, whole = go(tmp_path), go(None)
    assert {p: p.stat().st_mtime_ns for p in before} == before
    for a, b in zip(resumed, whole, strict=True):
        assert torch.equal(a.samples, b.samples)
        assert a.verdict == b.verdict


def test_what_is_read_back_is_what_was_written(tmp_path):
    first = go(tmp_path)
    began = time.monotonic()
    again = go(tmp_path)
    assert time.monotonic() - began < 5
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.samples, b.samples)
        assert a.info.figures == b.info.figures
        assert a.info.relative_ess == b.info.relative_ess
        assert a.info.warnings == b.info.warnings
    one, other = (u[-1].adapted.sample((50,), X[-1], seed=3) for u in (first, again))
    assert torch.equal(one, other)
    assert torch.equal(first[-1].adapted.log_r(X), again[-1].adapted.log_r(X))  # pyright: ignore


def test_more_observations_are_added_to_a_finished_run(tmp_path):
    go(tmp_path, x=X[:2])
    assert torch.equal(go(tmp_path)[-1].samples, go(None)[-1].samples)


def test_a_run_with_missing_entries_goes_on(tmp_path):
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(600, 2, generator=generator)
    x = torch.cat([theta, theta], 1) + 0.5 * torch.randn(600, 4, generator=generator)
    posterior = reprior.train(
        theta,
        x,
        MultivariateNormal(torch.zeros(2), torch.eye(2)),
        network="simformer",
        settings=SimformerSettings(layers=1, absent=0.2),
        training=reprior.Training(steps=20, batch=64, evaluate_every=20),
        progress=False,
    )
    gaps = torch.tensor([[0.5, 0.2, torch.nan, 0.3]])
    first, again = (
        reprior.update(posterior, gaps, settings=QUICK, samples=200, folder=tmp_path, progress=False) for _ in range(2)
    )
    assert torch.equal(first[0].samples, again[0].samples)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"seed": 1}, "seed"),
        ({"x": X[:1] + 1}, "observations"),
        ({"samples": 400}, "samples"),
        ({"nuisance": [1]}, "nuisance"),
        ({"settings": replace(QUICK, points=120)}, "settings"),
    ],
)
def test_another_run_is_not_taken_for_this_one(tmp_path, change, name):
    go(tmp_path, x=X[:1])
    change = {"x": X[:1], **change}
    with pytest.warns(UserWarning, match=f"other settings only.*differ in: {name}"):
        found = go(tmp_path, **change)
    assert torch.equal(found[0].samples, go(None, **change)[0].samples)


def test_the_observations_before_are_part_of_the_question(tmp_path):
    go(tmp_path, x=X[:2])
    other = go(tmp_path, x=X[[2, 1]])
    assert torch.equal(other[1].samples, go(None, x=X[[2, 1]])[1].samples)


def test_an_adapted_posterior_of_a_run_is_saved_like_any_other(tmp_path):
    adapted = go(None, x=X[:2])[-1].adapted
    assert isinstance(adapted, reprior.AdaptedPosterior)
    again = rebuild_adapted(POSTERIOR, *adapted_parts(adapted))
    assert torch.equal(again.sample((50,), X[1], seed=0), adapted.sample((50,), X[1], seed=0))


def test_the_key_of_a_run_knows_prior_sampler_and_simulations():
    def key(posterior):
        return fingerprint(*posterior.to_parts(simulations=True))

    plain = key(POSTERIOR)
    assert plain == key(replace(POSTERIOR))
    wider = MultivariateNormal(torch.zeros(POSTERIOR.dim), 2 * torch.eye(POSTERIOR.dim))
    others = [
        replace(POSTERIOR, prior=wider),
        replace(POSTERIOR, prior=_Own(1.0)),
        replace(POSTERIOR, prior=_Own(2.0)),
        replace(POSTERIOR, sampler=Sampler(steps=7)),
        replace(POSTERIOR, simulations=None),
    ]
    assert len({plain, *(key(other) for other in others)}) == 6


class _Own:
    """A prior that no file can hold."""

    def __init__(self, scale: float):
        self.scale = scale

    def sample(self, shape):
        return self.scale * torch.randn(*shape, POSTERIOR.dim)

    def log_prob(self, theta):
        return -(theta**2).sum(-1) / (2 * self.scale**2)
