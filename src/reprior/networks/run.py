"""The state of a training run, and how it is written to a folder and resumed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor, nn
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, LRScheduler
from torch.optim.swa_utils import AveragedModel

from reprior.store import Store

if TYPE_CHECKING:
    from reprior.networks.fit import Training

__all__ = ["Resume", "Run", "scheduler_of"]

_COUNTS = ("step", "best_step", "since_best", "skipped", "best_loss", "history", "seconds", "stopped")


def scheduler_of(settings: Training, optimiser: torch.optim.Optimizer) -> LRScheduler:
    """The schedule of the learning rate, for an optimiser that begins with the first one."""
    if settings.schedule == "cosine":
        return CosineAnnealingLR(optimiser, settings.steps, settings.final_learning_rate)
    if settings.schedule == "linear":
        return LinearLR(optimiser, 1.0, settings.final_learning_rate / settings.learning_rate, settings.steps)
    return ConstantLR(optimiser, 1.0)


def _moving_average(decay: float) -> Callable[..., None]:
    """An exponential moving average whose memory grows with the number of steps, up to that of the given decay.

    With a fixed decay, as torch's `get_ema_multi_avg_fn` has it, the average of a short run is still full of the weights
    that the run began with.
    """

    @torch.no_grad()
    def update(averages: list[Tensor], values: list[Tensor], count: Tensor | int) -> None:
        n = float(count)
        now = min(decay, (1 + n) / (10 + n))
        for average, value in zip(averages, values, strict=True):
            if average.is_floating_point():
                average.lerp_(value.to(average), 1 - now)
            else:
                average.copy_(value)

    return update


class Run:
    """The whole state of a run.

    Arguments:
        module: the network.
        settings: the settings.
        seed: seeds the minibatches and the noise.
    """

    def __init__(self, module: nn.Module, settings: Training, seed: int):
        self.module = module
        self.generator = Generator().manual_seed(seed)
        self.average = AveragedModel(module, multi_avg_fn=_moving_average(settings.ema), use_buffers=True)
        self.optimiser = torch.optim.AdamW(
            [p for p in module.parameters() if p.requires_grad],
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.scheduler = scheduler_of(settings, self.optimiser)
        self.best = {k: v.clone() for k, v in module.state_dict().items()}
        self.best_loss = math.inf
        self.step = self.best_step = self.since_best = self.skipped = 0
        self.history: list[tuple[int, float]] = []
        self.seconds = 0.0
        self.stopped = False

    def judge(self, held_out: float) -> None:
        """Keeps the averaged weights if their held-out loss is the best so far."""
        self.history.append((self.step, held_out))
        if held_out < self.best_loss:
            self.best_loss, self.best_step, self.since_best = held_out, self.step, 0
            self.best = {k: v.detach().clone() for k, v in self.average.module.state_dict().items()}
        else:
            self.since_best += 1


@dataclass(frozen=True)
class Resume:
    """Where the state of a run is kept: the store, and the key of the run."""

    store: Store
    key: dict[str, Any]

    def write(self, run: Run) -> None:
        """Keeps the state of a run, between two steps."""
        parts = {"module": run.module.state_dict(), "average": run.average.state_dict(), "best": run.best}
        tensors = {f"{name}.{k}": v for name, part in parts.items() for k, v in part.items()}
        for i, state in run.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{i}.{k}": torch.as_tensor(v) for k, v in state.items()}
        tensors |= {"random.generator": run.generator.get_state(), "random.global": torch.get_rng_state()}
        meta = {name: getattr(run, name) for name in _COUNTS}
        self.store.put(self.key, tensors, {**meta, "scheduler": run.scheduler.state_dict()})

    def read(self, run: Run) -> None:
        """Restores the state that was written, if there is one."""
        file = self.store.get(self.key)
        if file is None:
            self.store.warn_if_other(self.key)
            return
        parts: dict[str, dict[str, Tensor]] = {}
        for name, value in file.tensors.items():
            part, rest = name.split(".", 1)
            parts.setdefault(part, {})[rest] = value
        run.module.load_state_dict(parts["module"])
        run.average.load_state_dict(parts["average"])
        run.best = parts["best"]
        run.generator.set_state(parts["random"]["generator"])
        torch.set_rng_state(parts["random"]["global"])
        state = run.optimiser.state_dict()
        for name, value in parts.get("optimiser", {}).items():
            i, entry = name.split(".", 1)
            state["state"].setdefault(int(i), {})[entry] = value
        run.optimiser.load_state_dict(state)
        run.scheduler.load_state_dict(file.meta["scheduler"])
        for group, rate in zip(run.optimiser.param_groups, run.scheduler.get_last_lr(), strict=True):
            group["lr"] = rate
        for name in _COUNTS:
            setattr(run, name, file.meta[name])
        run.history = [(int(step), float(held_out)) for step, held_out in run.history]
