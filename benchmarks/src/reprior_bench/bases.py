"""The base posteriors of the benchmark: one per task, regime and network, trained once and kept in a folder.

A base file holds the network and its scales but not the simulations: they are made again from their seed in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reprior import io, priors
from reprior_bench import tasks
from reprior.diffusion.sampler import PAPER_SAMPLER, Sampler
from reprior.networks.fit import Training
from reprior.errors import InputError
from reprior.loading import load
from reprior.networks.build import NETWORKS
from reprior.networks.embedding import Embedding
from reprior.networks.masks import MaskMix
from reprior.networks.mlp import MLPSettings
from reprior.networks.simformer import PAPER_SIMFORMER, SimformerSettings
from reprior.posterior import Posterior
from reprior.trainer import train

__all__ = ["BASE_SEED", "BaseSpec", "get_base", "mark_of", "simulations_of"]

BASE_SEED = 0  # of the simulations and of the training
QUICK_SIMULATIONS = 5_000

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
PAPER_PATCH = {"oup": 5, "turin": 20}  # neighbours in one token, where the paper has one token for each point

# Series, whose predictive is asked for, train all masks, most often the start of a series as what is given; the others
# theta | x alone, which needs far fewer steps. A Simformer row gives several noisy states, so a batch of 128 is as
# large as one of 512 of the MLP.
THETA_ONLY = SimformerSettings(masks=MaskMix(1, 0, 0, 0, 0), absent=0.0)
FORECAST = SimformerSettings(masks=MaskMix(0.25, 0.01, 0.02, 0.06, 0.02, forecast=0.64))
SIMFORMER_RECIPES: dict[str, tuple[SimformerSettings, Training]] = {
    "two_moons": (THETA_ONLY, Training(steps=5_000, batch=128)),
    # x is four points in the plane
    "slcp": (replace(THETA_ONLY, patch=2, weigh=True), Training(steps=36_000, batch=128)),
    "gaussian_linear": (THETA_ONLY, Training(steps=1_000, batch=128)),
    "oup": (replace(FORECAST, weigh=True), Training(steps=36_000, batch=128)),
    "turin": (FORECAST, Training(steps=4_000, batch=128)),
}

# Tasks whose x is a set of items or looks alike all along take an embedding that knows it, and SLCP's sharp posteriors
# more steps.
MLP_RECIPES: dict[str, tuple[MLPSettings, Training]] = {
    "slcp": (MLPSettings(embedding=Embedding(kind="set", item=2), guess="gaussian"), Training(steps=30_000)),
    "turin": (
        MLPSettings(
            width=96,
            blocks=2,
            embedding=Embedding(kind="peak", item=5, step=2, width=64, features=24),
            guess="gaussian",
        ),
        Training(steps=12_000, patience=3),
    ),
}


@dataclass(frozen=True)
class BaseSpec:
    """Which base.

    Attributes:
        task: the name of the task.
        regime: "id" or "ood".
        network: "mlp" or "simformer".
        preset: "best" (this library's defaults) or "paper" (the paper's Simformer).
        simulations: the number of simulations.
        steps: training steps; 0 takes the preset's.
        quick: the smallest version, to try the machinery out: 5,000 simulations and a few dozen steps.
    """

    task: str
    regime: str
    network: str = "mlp"
    preset: str = "best"
    simulations: int = 50_000
    steps: int = 0
    quick: bool = False

    def __post_init__(self) -> None:
        tasks.get(self.task)
        if self.network not in NETWORKS:
            raise InputError(f"network {self.network!r} is unknown; allowed: {', '.join(NETWORKS)}")
        if self.preset not in ("best", "paper"):
            raise InputError(f"preset {self.preset!r} is unknown; allowed: best, paper")
        if self.preset == "paper" and self.network != "simformer":
            raise InputError(f"preset paper stands on network='simformer'; got {self.network!r}")
        if self.quick:
            object.__setattr__(self, "simulations", QUICK_SIMULATIONS)

    @property
    def name(self) -> str:
        """The name of the file."""
        tail = ("" if self.steps == 0 else f"-{self.steps}") + ("-quick" if self.quick else "")
        return f"{self.task}-{self.regime}-{self.network}-{self.preset}{tail}"

    def path(self, folder: str | Path) -> Path:
        """Where its file is, or goes."""
        return Path(folder) / f"{self.name}.safetensors"

    def settings(self) -> tuple[Any, Training, Sampler]:
        """Network settings (None for the network's defaults), training settings and sampler."""
        sampler = PAPER_SAMPLER if self.preset == "paper" else Sampler()
        if self.preset == "paper":
            network: Any = replace(PAPER_SIMFORMER, patch=PAPER_PATCH.get(self.task, 1))
            training = PAPER_TRAINING
        elif self.network == "simformer":
            default = SimformerSettings(), Training(steps=8_000, batch=128)
            network, training = SIMFORMER_RECIPES.get(self.task, default)
        else:
            network, training = MLP_RECIPES.get(self.task, (None, Training()))
        if self.quick:
            steps, batch = (100, 512) if self.network == "mlp" else (20, 64)
            training = replace(training, steps=steps, batch=batch, evaluate_every=steps // 2)
        if self.steps:
            training = replace(training, steps=self.steps)
        return network, training, sampler


def simulations_of(spec: BaseSpec) -> tuple[Tensor, Tensor]:
    """The simulations of a base, made from their seed."""
    task = tasks.get(spec.task)
    theta = priors.sample(task.training_prior(spec.regime), spec.simulations, BASE_SEED)
    return theta, task.simulate(theta, seed=BASE_SEED + 1)


def get_base(spec: BaseSpec, folder: str | Path, progress: bool = True) -> Posterior:
    """The base of a specification: from the folder, or trained and written there.

    A killed training goes on from its checkpoint, which is removed when the base is written.
    """
    path = spec.path(folder)
    network, training, sampler = spec.settings()
    theta, x = simulations_of(spec)
    if path.exists():
        base = load(path)
        assert isinstance(base, Posterior)
        if network is not None and getattr(base.base, "settings", None) != network:
            raise InputError(
                f"{path} was trained with other settings than this version's recipe. Remove it, and the records that "
                "stand on it, to train it again; or take another folder."
            )
        return replace(base.with_simulations(theta, x), sampler=sampler)
    task = tasks.get(spec.task)
    checkpoint = path.with_suffix(".checkpoint.safetensors")
    posterior = train(
        theta,
        x,
        task.training_prior(spec.regime),
        network=spec.network,
        settings=network,
        training=training,
        seed=BASE_SEED,
        parameters=task.parameters,
        checkpoint=checkpoint,
        progress=progress,
    )
    posterior = replace(posterior, sampler=sampler)
    posterior.save(path, simulations=False)
    checkpoint.unlink(missing_ok=True)
    return posterior


def mark_of(spec: BaseSpec, folder: str | Path) -> str:
    """What tells a base from another one of the same name: the start of its file's digest."""
    return io.digest_of(spec.path(folder))[:12]


def one_thread() -> None:
    """One torch thread: on busy cores two threads of one process are slower than one."""
    torch.set_num_threads(1)
