"""The base posteriors of the benchmark: one per task, regime, network and preset, trained once and kept in a folder.

A base file holds the network and its scales but not the simulations: they are made again from their seed in seconds.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors.torch
from torch import Tensor

import reprior
from reprior import priors
from reprior.diffusion.sampler import PAPER_SAMPLER, Sampler
from reprior.errors import InputError
from reprior.networks.fit import Training
from reprior.networks.simformer import PAPER_SIMFORMER, SimformerSettings
from reprior.posterior import Posterior
from reprior_bench import tasks
from reprior_bench.tasks.base import Recipe

__all__ = ["BASE_SEED", "BaseSpec", "fingerprint_of", "get_base", "simulations_of"]

BASE_SEED = 0  # of the simulations and of the training
DEFAULTS = {
    "mlp": Recipe(None, Training()),
    "simformer": Recipe(SimformerSettings(), Training(steps=8_000, batch=128)),
}
PRESETS = ("best", "paper", "quick")
QUICK = {"mlp": (100, 512), "simformer": (20, 64)}  # steps and batch
# The paper states batch, rates, linear decay and clipping as here, and 5,000 to 50,000 steps: see `presets`.
PAPER_TRAINING = Training(
    steps=5_000,
    batch=1_000,
    learning_rate=1e-3,
    final_learning_rate=1e-6,
    schedule="linear",
    ema=0.0,
    clip=10.0,
    patience=1_000,
)


@dataclass(frozen=True)
class BaseSpec:
    """Which base.

    Attributes:
        task: the name of the task.
        regime: "id" or "ood".
        network: "mlp" or "simformer".
        preset: "best" (the task's recipe), "paper" (the paper's Simformer), or "quick" (the recipe with 5,000
            simulations and a few dozen steps, to try the machinery out).
    """

    task: str
    regime: str
    network: str = "mlp"
    preset: str = "best"

    def __post_init__(self) -> None:
        allowed = tasks.get(self.task).regimes
        if self.regime not in allowed:
            raise InputError(f"regime {self.regime!r} is unknown; allowed: {', '.join(allowed)}")
        if self.network not in DEFAULTS:
            raise InputError(f"network {self.network!r} is unknown; allowed: {', '.join(DEFAULTS)}")
        if self.preset not in PRESETS:
            raise InputError(f"preset {self.preset!r} is unknown; allowed: {', '.join(PRESETS)}")
        if self.preset == "paper" and self.network != "simformer":
            raise InputError(f"preset paper stands on network='simformer'; got {self.network!r}")

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"{self.task}-{self.regime}-{self.network}-{self.preset}"

    @property
    def simulations(self) -> int:
        """How many simulations it is trained on; 50,000 in the paper."""
        return 5_000 if self.preset == "quick" else 50_000

    def path(self, folder: str | Path) -> Path:
        """Where its file is, or goes."""
        return Path(folder) / f"{self.name}.safetensors"

    def recipe(self) -> Recipe:
        """How it is trained."""
        task = tasks.get(self.task)
        if self.preset == "paper":
            return Recipe(replace(PAPER_SIMFORMER, patch=task.paper_patch), PAPER_TRAINING)
        recipe = task.recipes.get(self.network, DEFAULTS[self.network])
        if self.preset == "best":
            return recipe
        steps, batch = QUICK[self.network]
        return replace(recipe, training=replace(recipe.training, steps=steps, batch=batch, evaluate_every=steps // 2))


def simulations_of(spec: BaseSpec) -> tuple[Tensor, Tensor]:
    """The simulations of a base, made from their seed: theta with shape (n, d) and x with shape (n, m)."""
    task = tasks.get(spec.task)
    theta = priors.sample(task.training_prior(spec.regime), spec.simulations, BASE_SEED)
    return theta, task.simulate(theta, seed=BASE_SEED + 1)


def get_base(spec: BaseSpec, folder: str | Path, progress: bool = False) -> Posterior:
    """The base of a specification: from the folder, or trained and written there.

    A training that was killed goes on from where it was; what it keeps for that is removed when the base is written.
    """
    path, recipe = spec.path(folder), spec.recipe()
    theta, x = simulations_of(spec)
    sampler = PAPER_SAMPLER if spec.preset == "paper" else Sampler()
    if path.exists():
        base = reprior.load(path)
        assert isinstance(base, Posterior)
        if recipe.network is not None and getattr(base.base, "settings", None) != recipe.network:
            raise InputError(
                f"{path} was trained with other settings than those of its task now: remove it to train it again, or take "
                "another folder"
            )
        return replace(base.with_simulations(theta, x), sampler=sampler)
    task = tasks.get(spec.task)
    unfinished = path.with_suffix(".training")
    posterior = reprior.train(
        theta,
        x,
        task.training_prior(spec.regime),
        network=spec.network,
        settings=recipe.network,
        training=recipe.training,
        seed=BASE_SEED,
        parameters=task.parameters,
        folder=unfinished,
        progress=progress,
    )
    posterior = replace(posterior, sampler=sampler)
    posterior.save(path, simulations=False)
    shutil.rmtree(unfinished, ignore_errors=True)
    return posterior


def fingerprint_of(spec: BaseSpec, folder: str | Path) -> str:
    """What tells a base from another one of the same name: a hash of its tensors; empty if there is no file.

    The names of the tensors and the text beside them do not count, so that a file that is written again in another
    layout is the same base.
    """
    path = spec.path(folder)
    if not path.exists():
        return ""
    tensors = safetensors.torch.load_file(path).values()
    each = sorted(hashlib.sha256(t.contiguous().numpy().tobytes()).hexdigest() for t in tensors)
    return hashlib.sha256("".join(each).encode()).hexdigest()[:12]
