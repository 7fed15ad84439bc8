"""The bases that the repository holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import reprior
from reprior.errors import InputError
from reprior_bench import tasks
from reprior_bench.bases import BaseSpec
from reprior_bench.tasks import BENCHMARK, REGIMES

BASES = Path(__file__).parents[1] / "results" / "bases"
KEPT = [BaseSpec(t, r, network) for t in BENCHMARK for r in REGIMES for network in ("mlp", "simformer")]


@pytest.mark.parametrize("spec", KEPT, ids=lambda spec: spec.name)
def test_a_base_is_there_loads_and_is_of_its_recipe(spec):
    posterior = reprior.load(spec.path(BASES))
    task = tasks.get(spec.task)
    assert posterior.parameters == task.parameters
    wanted = spec.recipe().network
    assert wanted is None or posterior.base.settings == wanted
    _, x = task.observations(spec.regime, 1, seed=0)
    assert bool(torch.isfinite(posterior.sample((10,), x=x, seed=0)).all())


def test_no_other_files_are_kept():
    npse = {f"npse-{task}-{regime}" for task in ("gaussian_linear", "two_moons") for regime in REGIMES}
    assert {p.stem for p in BASES.glob("*.safetensors")} == npse | {spec.name for spec in KEPT}


@pytest.mark.parametrize("name", ["npse-gaussian_linear-id", "npse-two_moons-ood"])
def test_a_posterior_of_sbi_loads(name):
    pytest.importorskip("sbi")
    posterior = reprior.load(BASES / f"{name}.safetensors")
    assert posterior.sample((10,), x=torch.zeros(posterior.x_dim), seed=0).shape == (10, posterior.dim)


def test_a_base_is_named_in_full():
    with pytest.raises(InputError, match="network 'cnn' is unknown; allowed: mlp, simformer"):
        BaseSpec("oup", "id", "cnn")
    with pytest.raises(InputError, match="preset paper stands on network='simformer'; got 'mlp'"):
        BaseSpec("oup", "id", "mlp", "paper")
    with pytest.raises(InputError, match="regime 'far' is unknown"):
        BaseSpec("oup", "far")
