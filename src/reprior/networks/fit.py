"""The one training loop: base models, ratio networks and score corrections use it.

AdamW on minibatches, with clipped gradients and an exponential moving average (EMA) of the weights. The held-out loss of
the averaged weights decides which of them are kept, and when to stop.

With a folder, a run that was killed can be resumed and ends with the model that it would have reached. From time to time it
writes its weights, their average, the optimiser, the learning rate and the states of the random numbers. Those include
torch's global state, as a user's layers may draw from it (dropout).
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from tqdm.auto import tqdm

from reprior.errors import InputError
from reprior.fingerprint import plain
from reprior.networks.run import Resume, Run
from reprior.seeds import seeded
from reprior.store import Store

__all__ = ["FitResult", "Training", "fit"]

SCHEDULES = ("cosine", "linear", "constant")
SKIPPED = 0.02  # a run warns if more than this fraction of its steps had no finite gradient; fewer do no harm


@dataclass(frozen=True)
class Training:
    """Settings of a training run.

    Attributes:
        steps: the largest number of gradient steps; the learning rate falls over them.
        batch: rows per step.
        learning_rate: the first learning rate.
        final_learning_rate: the last one.
        schedule: how it falls: "cosine" (half a wave), "linear" or "constant" (not at all).
        weight_decay: AdamW's decay of the weights.
        ema: the decay of the moving average of the weights.
        clip: the largest gradient norm.
        validation: the fraction of rows held out.
        evaluate_every: steps between held-out losses.
        patience: held-out losses without a new best one before the run stops.
        checkpoint_seconds: seconds between two writings of the state of the run, where a folder is given.
    """

    steps: int = 16_000
    batch: int = 512
    learning_rate: float = 2e-3
    final_learning_rate: float = 1e-6
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    weight_decay: float = 0.0
    ema: float = 0.999
    clip: float = 5.0
    validation: float = 0.05
    evaluate_every: int = 500
    patience: int = 12
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise InputError(f"schedule {self.schedule!r} is unknown; allowed: {', '.join(SCHEDULES)}")
        for name in ("steps", "batch", "evaluate_every", "patience"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1; got {getattr(self, name)}")
        if not 0 < self.validation < 0.9:
            raise InputError(f"validation must lie in (0, 0.9); got {self.validation}")
        if not 0 <= self.ema < 1:
            raise InputError(f"ema must lie in [0, 1); got {self.ema}")
        if not self.learning_rate > 0 or not self.clip > 0:
            raise InputError(f"learning_rate and clip must be positive; got {self.learning_rate} and {self.clip}")
        if self.schedule != "constant" and not 0 <= self.final_learning_rate <= self.learning_rate:
            raise InputError(
                f"final_learning_rate must lie between 0 and learning_rate ({self.learning_rate}); got "
                f"{self.final_learning_rate}"
            )


@dataclass(frozen=True)
class FitResult:
    """What a training run did.

    Attributes:
        steps: the steps taken.
        best_step: the step whose weights were kept.
        best_loss: its held-out loss.
        history: (step, held-out loss) pairs.
        seconds: training time, over all parts of a run that was resumed.
        stopped: why it ended: "steps" or "patience"; or "not trained".
        alone: the held-out loss of the guess without the network, where it was measured; else NaN.
        factor: the factor on the network's output, from 0 (the guess alone) to 1.
    """

    steps: int
    best_step: int
    best_loss: float
    history: list[tuple[int, float]]
    seconds: float
    stopped: str
    alone: float = math.nan
    factor: float = 1.0


Loss = Callable[[nn.Module, Tensor, Generator], Tensor]


def fit(
    module: nn.Module,
    loss: Loss,
    validate: Callable[[nn.Module], float],
    rows: int,
    settings: Training,
    seed: int,
    label: str = "train",
    progress: bool = True,
    folder: str | os.PathLike[str] | None = None,
    key: Mapping[str, Any] | None = None,
) -> FitResult:
    """Trains a module in place and leaves in it the averaged weights with the best held-out loss.

    Arguments:
        module: the network.
        loss: gives the scalar loss of (module, row indices with shape (batch,), generator).
        validate: gives the held-out loss of a module; it must be a fixed function (fixed noise).
        rows: the number of training rows that indices are drawn from.
        settings: the settings.
        seed: the same seed gives the same weights on the same machine.
        label: the text before the progress bar.
        progress: whether to show the progress bar.
        folder: where the state of the run is kept, and found again by the same call; None keeps nothing.
        key: what is trained on what (data, network settings): with another key a run begins anew.
    """
    run = Run(module, settings, seed)
    resume = None
    if folder is not None:
        # The network's text lists its layers: a user's own embedding has no settings that could be compared.
        compared = {name: value for name, value in asdict(settings).items() if name != "checkpoint_seconds"}
        resume = Resume(Store(folder, "fit"), plain({**compared, **(key or {}), "seed": seed, "network": str(module)}))
    with seeded(seed):
        if resume is not None:
            resume.read(run)
        _steps(run, loss, validate, rows, settings, label, progress, resume)
        if resume is not None:
            resume.write(run)
    if not math.isfinite(run.best_loss):
        raise InputError(
            f"{label}: no held-out loss was finite in {run.step} steps; lower the learning rate "
            f"({settings.learning_rate}), or look for extreme values in the data"
        )
    if run.skipped > SKIPPED * run.step:
        warnings.warn(
            f"{label}: {run.skipped} of {run.step} steps had a gradient with NaN or infinity and were left out; look for "
            "extreme values in the data, or at the embedding",
            stacklevel=2,
        )
    module.load_state_dict(run.best)
    module.eval()
    why = "patience" if run.stopped and run.step < settings.steps else "steps"
    return FitResult(run.step, run.best_step, run.best_loss, run.history, run.seconds, why)


def _steps(
    run: Run,
    loss: Loss,
    validate: Callable[[nn.Module], float],
    rows: int,
    settings: Training,
    label: str,
    progress: bool,
    resume: Resume | None,
) -> None:
    """Makes the remaining steps of a run. Arguments as in `fit`."""
    module, average, optimiser, generator = run.module, run.average, run.optimiser, run.generator
    parameters = [p for p in module.parameters() if p.requires_grad]
    module.train()
    began = saved = time.monotonic()
    with tqdm(total=settings.steps, initial=run.step, desc=label, disable=not progress, mininterval=1.0) as bar:
        while run.step < settings.steps and not run.stopped:
            index = torch.randint(rows, (min(settings.batch, rows),), generator=generator)
            optimiser.zero_grad(set_to_none=True)
            value = loss(module, index, generator)
            value.backward()
            norm = nn.utils.clip_grad_norm_(parameters, settings.clip)
            if torch.isfinite(norm):
                optimiser.step()
                average.update_parameters(module)
            else:  # without gradients the optimiser leaves the weights as they are
                optimiser.zero_grad(set_to_none=True)
                optimiser.step()
                run.skipped += 1
            run.scheduler.step()
            run.step += 1
            bar.update()
            if run.step % settings.evaluate_every == 0 or run.step == settings.steps:
                if run.skipped == run.step:
                    raise InputError(
                        f"{label}: no gradient was finite in {run.step} steps, so nothing was learned; look for extreme "
                        "values in the data, or at the embedding (a square root, or a norm, of zero has no gradient)"
                    )
                average.module.eval()
                with torch.no_grad():
                    held_out = validate(average.module)
                run.judge(held_out)
                bar.set_postfix(held_out=f"{held_out:.4f}", best=f"{run.best_loss:.4f}")
                run.stopped = run.since_best >= settings.patience
            now = time.monotonic()
            run.seconds, began = run.seconds + now - began, now
            if resume is not None and now - saved > settings.checkpoint_seconds:
                resume.write(run)
                saved = now
