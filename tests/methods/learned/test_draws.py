"""Base draws that are kept in a folder: found again where nothing changed, and nowhere else."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from exact import gaussian_posterior, problem_of
from torch.distributions import MultivariateNormal

import reprior
from reprior.diffusion.sampler import Sampler
from reprior.methods.learned import BEST, PAPER, draws
from reprior.methods.learned.draws import base_draws

POSTERIOR, _ = gaussian_posterior(dim=2, c=0.3, n=2_000)
TARGET = MultivariateNormal(torch.tensor([0.5, 0.0]), 0.5 * torch.eye(2))
SAMPLER = Sampler(steps=4)
X = torch.randn(6, 2, generator=torch.Generator().manual_seed(5))


def drawn(folder, seed=0, posterior=POSTERIOR, x=X, n=8, sampler=SAMPLER, transported=None):
    """Draws, and the next number of the generator after them."""
    generator, problem = torch.Generator().manual_seed(seed), problem_of(posterior, TARGET, folder=folder)
    return base_draws(problem, x, n, sampler, generator, transported), torch.rand(1, generator=generator)


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_args, **_more):
        raise AssertionError("the base was asked")

    return lambda: monkeypatch.setattr(draws, "chunked", refuse)


def test_kept_draws_are_the_same_and_so_is_what_follows(tmp_path, no_network):
    plain, plain_next = drawn(None)
    first, first_next = drawn(tmp_path)
    no_network()
    again, again_next = drawn(tmp_path)
    assert plain.shape == (8, 6, 2)
    assert torch.equal(plain, first)
    assert torch.equal(plain, again)
    assert torch.equal(plain_next, first_next)
    assert torch.equal(plain_next, again_next)


def test_anything_else_is_drawn_anew(tmp_path):
    other, _ = gaussian_posterior(dim=2, c=0.4, n=2_000)
    lower = copy.copy(POSTERIOR.base)
    lower.s_max = 20.0
    drawn(tmp_path)
    cases = [{"seed": 1}, {"x": X + 1}, {"n": 9}, {"sampler": Sampler(steps=5)}, {"posterior": other}]
    cases.append({"posterior": replace(POSTERIOR, base=lower)})
    cases.append({"transported": problem_of(POSTERIOR, TARGET).change.quadratic})
    for k, case in enumerate(cases):
        kept = drawn(tmp_path, **case)[0]
        assert torch.equal(kept, drawn(None, **case)[0])
        assert len(list(tmp_path.iterdir())) == k + 2


def test_blocks_are_kept_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(draws, "BLOCK", 2)
    whole = drawn(tmp_path)[0]
    assert len(list(tmp_path.iterdir())) == 3
    max(tmp_path.iterdir(), key=lambda p: p.stat().st_mtime_ns).unlink()  # as if cut off in the last block
    assert torch.equal(drawn(tmp_path)[0], whole)


def test_a_damaged_file_is_named_and_made_again(tmp_path):
    whole = drawn(tmp_path)[0]
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.warns(UserWarning, match=path.name):
        again = drawn(tmp_path)[0]
    assert torch.equal(again, whole)


@pytest.mark.parametrize("preset", [BEST, PAPER])
def test_estimators_share_their_draws(tmp_path, no_network, preset):
    training = replace(preset.training, steps=2, batch=64)
    settings = replace(preset, observations=20, draws=10, sampler=SAMPLER, training=training, on="base", plug_in="off")
    plain = reprior.adapt(POSTERIOR, TARGET, method="nre", settings=settings)
    kept = reprior.adapt(POSTERIOR, TARGET, method="nre", settings=settings, folder=tmp_path)
    for a, b in zip(plain.method.tensors().values(), kept.method.tensors().values(), strict=True):
        assert torch.equal(a, b)
    no_network()
    for method in ("kliep", "pearson"):
        reprior.adapt(POSTERIOR, TARGET, method=method, settings=settings, folder=tmp_path)
