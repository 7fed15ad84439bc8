"""One training loop for every network here: base models, ratio networks, score corrections.

Adam on minibatches drawn with a generator, gradient clipping, an exponential moving average (EMA) of the weights, a
held-out loss of the EMA weights that decides what is kept and when to stop, and a checkpoint from which a killed run
goes on to the very model it would have reached: the checkpoint holds weights, EMA, optimiser, generator, and the state
of torch's own random numbers, which a user's layers may draw from (dropout).
"""

from __future__ import annotations

import math
import signal
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.optim.swa_utils import AveragedModel
from tqdm.auto import tqdm

from reprior import io
from reprior.errors import InputError

__all__ = ["FitResult", "Training", "fit"]

SCHEDULES = ("cosine", "linear", "half_linear", "constant")
MANY = 0.02  # share of steps without a finite gradient that is warned of


@dataclass(frozen=True)
class Training:
    """Settings of a training run.

    Attributes:
        steps: the largest number of gradient steps; the learning rate falls over them.
        batch: rows per step.
        learning_rate: the first learning rate.
        final_learning_rate: the last one.
        schedule: "cosine", "linear", "half_linear" (constant for half the run, then linear) or "constant".
        weight_decay: AdamW's decay.
        ema: the decay of the moving average of the weights.
        clip: the largest gradient norm.
        validation: the fraction of rows held out.
        evaluate_every: steps between held-out losses.
        patience: held-out losses without a new best before the run stops.
        checkpoint_seconds: seconds between checkpoints, where a checkpoint file is given.
    """

    steps: int = 16_000
    batch: int = 512
    learning_rate: float = 2e-3
    final_learning_rate: float = 1e-6
    schedule: Literal["cosine", "linear", "half_linear", "constant"] = "cosine"
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

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        u = step / self.steps
        if self.schedule == "constant":
            share = 1.0
        elif self.schedule == "cosine":
            share = (1 + math.cos(math.pi * u)) / 2
        elif self.schedule == "linear":
            share = 1 - u
        else:
            share = min(1.0, 2 * (1 - u))
        return self.final_learning_rate + share * (self.learning_rate - self.final_learning_rate)


@dataclass(frozen=True)
class FitResult:
    """What a training run did.

    Attributes:
        steps: the steps taken.
        best_step: the step whose weights were kept.
        best_loss: its held-out loss.
        history: (step, held-out loss) pairs.
        seconds: training time, over all resumed parts.
        stopped: why it ended: "steps" or "patience"; or "not trained".
    """

    steps: int
    best_step: int
    best_loss: float
    history: list[tuple[int, float]]
    seconds: float
    stopped: str


def fit(
    module: nn.Module,
    loss: Callable[[nn.Module, Tensor, Generator], Tensor],
    validate: Callable[[nn.Module], float],
    rows: int,
    settings: Training,
    seed: int,
    label: str = "train",
    progress: bool = True,
    checkpoint: str | Path | None = None,
    fingerprint: dict[str, Any] | None = None,
) -> FitResult:
    """Trains a module in place and leaves in it the EMA weights with the best held-out loss.

    Arguments:
        module: the network.
        loss: gives the scalar loss of (module, row indices with shape (batch,), generator).
        validate: gives the held-out loss of a module; it must be a fixed function (fixed noise).
        rows: the number of training rows that indices are drawn from.
        settings: the settings.
        seed: seeds the minibatches and the noise.
        label: the text before the progress bar.
        progress: whether to show the progress bar.
        checkpoint: the file to save to and to go on from.
        fingerprint: plain data that says what is trained on what; a checkpoint with another one is refused.
    """
    generator = torch.Generator().manual_seed(seed)
    average = AveragedModel(module, multi_avg_fn=_moving_average(settings.ema), use_buffers=True)
    optimiser = torch.optim.AdamW(
        [p for p in module.parameters() if p.requires_grad],
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    run = _Run(module, average, optimiser, generator, {**asdict(settings), **(fingerprint or {}), "seed": seed})
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and io.resolve(path).exists():
        run.load(path)
    with torch.random.fork_rng():
        torch.manual_seed(seed) if run.random is None else torch.set_rng_state(run.random)
        stopped = _steps(run, loss, validate, rows, settings, label, progress, path)
    if not math.isfinite(run.best_loss):
        raise InputError(
            f"{label}: no held-out loss was finite in {run.step} steps; lower the learning rate "
            f"({settings.learning_rate}), or look for extreme values in the data"
        )
    if run.skipped > MANY * run.step:
        warnings.warn(
            f"{label}: {run.skipped} of {run.step} steps had a gradient with NaN or infinity and were left out; look for "
            "extreme values in the data, or at the embedding",
            stacklevel=2,
        )
    module.load_state_dict(run.best)
    module.eval()
    if path is not None:
        run.save(path)
    why = "patience" if stopped and run.step < settings.steps else "steps"
    return FitResult(run.step, run.best_step, run.best_loss, run.history, run.seconds, why)


def _steps(
    run: _Run,
    loss: Callable[[nn.Module, Tensor, Generator], Tensor],
    validate: Callable[[nn.Module], float],
    rows: int,
    settings: Training,
    label: str,
    progress: bool,
    path: Path | None,
) -> bool:
    """Takes the steps that are left; returns whether patience ended them. Arguments as in `fit`."""
    module, average, optimiser, generator = run.module, run.average, run.optimiser, run.generator
    parameters = [p for p in module.parameters() if p.requires_grad]
    module.train()
    bar = tqdm(total=settings.steps, initial=run.step, desc=label, disable=not progress, mininterval=1.0)
    began = saved = time.monotonic()
    stopped = run.stopped
    with bar, _HeldInterrupt() as interrupt:
        while run.step < settings.steps and not stopped:
            for group in optimiser.param_groups:
                group["lr"] = settings.rate(run.step)
            index = torch.randint(rows, (min(settings.batch, rows),), generator=generator)
            optimiser.zero_grad(set_to_none=True)
            value = loss(module, index, generator)
            value.backward()
            norm = nn.utils.clip_grad_norm_(parameters, settings.clip)
            if torch.isfinite(norm):  # a step with an infinite gradient is left out
                optimiser.step()
                average.update_parameters(module)
            else:
                run.skipped += 1
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
                stopped = run.since_best >= settings.patience
                run.stopped = stopped
            due = time.monotonic() - saved > settings.checkpoint_seconds
            if path is not None and (due or stopped or interrupt.pressed):
                run.seconds += time.monotonic() - began
                began = saved = time.monotonic()
                run.save(path)
            if interrupt.pressed:
                raise KeyboardInterrupt
    run.seconds += time.monotonic() - began
    return stopped


class _HeldInterrupt:
    """Holds Ctrl-C back while a step is under way, so that what is saved is whole; a second one comes through."""

    def __enter__(self) -> _HeldInterrupt:
        self.pressed = False
        here = threading.current_thread() is threading.main_thread()
        self.holds = here and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self.holds:
            signal.signal(signal.SIGINT, self._press)
        return self

    def _press(self, number: int, frame: Any) -> None:
        if self.pressed:
            signal.default_int_handler(number, frame)
        self.pressed = True

    def __exit__(self, *_: object) -> None:
        if self.holds:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _moving_average(decay: float) -> Callable[..., None]:
    """An exponential moving average whose memory grows with the run, so that a short run is not held back."""

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


class _Run:
    """The whole state of a run, to save and to go on from."""

    def __init__(self, module, average, optimiser, generator, fingerprint):
        self.module, self.average, self.optimiser, self.generator = module, average, optimiser, generator
        self.fingerprint = {k: v for k, v in fingerprint.items() if k != "checkpoint_seconds"}
        self.step = self.best_step = self.since_best = self.skipped = 0
        self.random: Tensor | None = None  # of torch's own random numbers, in the checkpoint that was read
        self.best_loss = math.inf
        self.best: dict[str, Tensor] = {k: v.clone() for k, v in module.state_dict().items()}
        self.history: list[tuple[int, float]] = []
        self.seconds = 0.0
        self.stopped = False

    def judge(self, held_out: float) -> None:
        self.history.append((self.step, held_out))
        if held_out < self.best_loss:
            self.best_loss, self.best_step, self.since_best = held_out, self.step, 0
            self.best = {k: v.detach().clone() for k, v in self.average.module.state_dict().items()}
        else:
            self.since_best += 1

    def save(self, path: Path) -> None:
        tensors = {f"module.{k}": v for k, v in self.module.state_dict().items()}
        tensors |= {f"average.{k}": v for k, v in self.average.state_dict().items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        tensors["generator"] = self.generator.get_state()
        tensors["random"] = torch.get_rng_state()
        for i, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{i}.{k}": torch.as_tensor(v) for k, v in state.items()}
        keep = (
            "step",
            "best_step",
            "since_best",
            "skipped",
            "best_loss",
            "history",
            "seconds",
            "stopped",
            "fingerprint",
        )
        io.write(path, "checkpoint", tensors, {k: getattr(self, k) for k in keep})

    def load(self, path: Path) -> None:
        file = io.read(path, "checkpoint")
        if file.meta["fingerprint"] != _plain(self.fingerprint):
            old, new = file.meta["fingerprint"], _plain(self.fingerprint)
            differ = sorted(k for k in old.keys() | new.keys() if old.get(k) != new.get(k))
            raise InputError(
                f"the checkpoint {path} belongs to another run (different: {', '.join(differ)}); "
                "remove it or give another path"
            )

        def part(prefix: str) -> dict[str, Tensor]:
            return {k[len(prefix) + 1 :]: v for k, v in file.tensors.items() if k.startswith(prefix + ".")}

        self.module.load_state_dict(part("module"))
        self.average.load_state_dict(part("average"))
        self.best = part("best")
        self.generator.set_state(file.tensors["generator"])
        state = self.optimiser.state_dict()
        state["state"] = {}
        for name, value in part("optimiser").items():
            i, key = name.split(".", 1)
            state["state"].setdefault(int(i), {})[key] = value
        self.optimiser.load_state_dict(state)
        for name in ("step", "best_step", "since_best", "best_loss", "seconds", "stopped"):
            setattr(self, name, file.meta[name])
        self.skipped = file.meta.get("skipped", 0)  # files of before have neither
        self.random = file.tensors.get("random")
        self.history = [(int(a), float(b)) for a, b in file.meta["history"]]


def _plain(value: Any) -> Any:
    # What JSON makes of it: tuples become lists.
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value
