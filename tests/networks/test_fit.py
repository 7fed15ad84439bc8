"""The training loop: it finds a known minimum, keeps the best weights, stops, and goes on to the same bits."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from reprior import io
from reprior.errors import InputError
from reprior.networks.fit import SCHEDULES, FitResult, Training, fit
from reprior.networks.run import scheduler_of

X = torch.randn(256, 3, generator=Generator().manual_seed(0))
TRUTH = torch.tensor([[1.0, -2.0, 0.5]])
Y = X @ TRUTH.T + 0.3
QUICK = Training(
    steps=60, batch=32, learning_rate=0.05, ema=0.9, evaluate_every=10, patience=100, checkpoint_seconds=1e9
)


def never(*_: Any) -> Tensor:
    """A loss of a run that is finished."""
    raise AssertionError("a finished run was trained")


def state_of(folder: Path) -> dict[str, Any]:
    """The plain data of the one run that is kept in a folder."""
    (path,) = folder.glob("fit-*.safetensors")
    return io.read(path, "fit").meta["result"]


class Killed(Exception):
    """Stands for a process that dies between two checkpoints."""


def network() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(3, 1)


def noisy_loss(module: nn.Module, rows: Tensor, generator: Generator) -> Tensor:
    """A squared error with random noise, so that the generator's state matters."""
    noise = 0.1 * torch.randn(len(rows), 1, generator=generator)
    return (module(X[rows]) - Y[rows] + noise).square().mean()


def held_out(module: nn.Module) -> float:
    return float((module(X) - Y).detach().square().mean())


def train(module: nn.Module, settings: Training = QUICK, loss=noisy_loss, **others) -> FitResult:
    return fit(module, loss, held_out, len(X), settings, seed=3, progress=False, **others)


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


# --- what it finds ------------------------------------------------------------------------------------------


def test_finds_the_least_squares_solution():
    module = network()
    result = train(module, replace(QUICK, steps=400))
    assert result.stopped == "steps"
    assert result.steps == 400
    assert torch.allclose(module.weight, TRUTH, atol=0.03)
    # The module holds the weights that gave the best held-out loss, and the history says which.
    assert held_out(module) == pytest.approx(result.best_loss, rel=1e-5)
    assert result.best_loss == min(loss for _, loss in result.history)
    assert dict(result.history)[result.best_step] == result.best_loss
    assert [step for step, _ in result.history] == list(range(10, 401, 10))
    assert not module.training


def test_moving_average_follows_its_recursion():
    # ema_1 = w_1, then ema_k = d_k ema_(k-1) + (1 - d_k) w_k with d_k = min(d, k / (9 + k)): the memory grows.
    module, decay = nn.Linear(1, 1, bias=False), 0.75
    nn.init.constant_(module.weight, 2.0)
    weights: list[float] = []

    def loss(m: Any, rows: Tensor, generator: Generator) -> Tensor:
        weights.append(float(m.weight))
        return m.weight.square().sum()

    seen: list[float] = []

    def validate(m: Any) -> float:
        seen.append(float(m.weight))
        return float(len(seen))

    settings = Training(steps=6, ema=decay, evaluate_every=1, learning_rate=0.1, patience=100)
    fit(module, loss, validate, 4, settings, seed=0, progress=False)
    after = weights[1:]  # the weights after each step but the last
    average = after[0]
    for k, weight in enumerate(after):
        now = min(decay, (1 + k) / (10 + k))
        average = weight if k == 0 else now * average + (1 - now) * weight
        assert seen[k] == pytest.approx(average, rel=1e-5)


def test_the_same_seed_gives_the_same_bits_and_another_does_not():
    one, two, other = network(), network(), network()
    train(one)
    train(two)
    fit(other, noisy_loss, held_out, len(X), QUICK, seed=4, progress=False)
    assert same(one, two)
    assert not same(one, other)


def test_global_random_state_is_left_alone():
    module = network()
    state = torch.get_rng_state()
    train(module, replace(QUICK, steps=5))
    assert torch.equal(state, torch.get_rng_state())


def test_stops_by_patience_with_the_best_weights():
    losses = iter([3.0, 2.0, 1.0, 5.0, 1.5, 4.0, 0.1])
    kept: list[Tensor] = []

    def validate(module: Any) -> float:
        kept.append(module.weight.clone())
        return next(losses)

    module = network()
    settings = replace(QUICK, steps=1_000, patience=3)
    result = fit(module, noisy_loss, validate, len(X), settings, seed=0, progress=False)
    assert (result.stopped, result.steps, result.best_step, result.best_loss) == ("patience", 60, 30, 1.0)
    assert torch.equal(module.weight, kept[2])


def test_steps_with_an_infinite_gradient_are_left_out():
    count = 0

    def loss(module: nn.Module, rows: Tensor, generator: Generator) -> Tensor:
        nonlocal count
        count += 1
        return noisy_loss(module, rows, generator) * (math.inf if count % 5 == 0 else 1.0)

    module = network()
    with pytest.warns(UserWarning, match="60 of 300 steps had a gradient with NaN or infinity"):
        result = train(module, replace(QUICK, steps=300), loss)
    assert torch.allclose(module.weight, TRUTH, atol=0.05)
    assert math.isfinite(result.best_loss)


def test_no_finite_gradient_at_all_is_an_error():
    def loss(module: nn.Module, rows: Tensor, generator: Generator) -> Tensor:
        # The square root of zero: a finite loss whose gradient is not.
        return noisy_loss(module, rows, generator) + (0 * module(X[rows])).square().mean().sqrt()

    with pytest.raises(InputError, match="no gradient was finite in 10 steps, so nothing was learned"):
        train(network(), loss=loss)


def with_dropout() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 1))


def test_layers_with_random_numbers_of_their_own_follow_the_seed(tmp_path):
    first, second, resumed = with_dropout(), with_dropout(), with_dropout()
    torch.manual_seed(5)
    train(first)
    torch.manual_seed(6)
    before = torch.get_rng_state()
    train(second)
    assert same(first, second)
    assert torch.equal(torch.get_rng_state(), before)  # the caller's own are left alone
    calls = 0

    def killed(module: nn.Module, rows: Tensor, generator: Generator) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 35:
            raise Killed
        return noisy_loss(module, rows, generator)

    often = replace(QUICK, checkpoint_seconds=0.0)
    with pytest.raises(Killed):
        train(resumed, often, killed, folder=tmp_path)
    again = with_dropout()
    torch.manual_seed(7)
    train(again, often, folder=tmp_path)
    assert same(again, first)


def test_a_loss_that_is_never_finite_is_an_error():
    with pytest.raises(InputError, match="no held-out loss was finite in 60 steps"):
        fit(network(), noisy_loss, lambda _: math.nan, len(X), QUICK, seed=0, progress=False)


def test_frozen_weights_stay():
    module = network()
    module.bias.requires_grad_(False)
    before = module.bias.clone()
    train(module)
    assert torch.equal(module.bias, before)


# --- going on from a checkpoint -----------------------------------------------------------------------------


def dies_at(step: int):
    """A loss that dies in the given step, after drawing from the generator, as a kill would."""
    count = 0

    def loss(module: nn.Module, rows: Tensor, generator: Generator) -> Tensor:
        nonlocal count
        count += 1
        value = noisy_loss(module, rows, generator)
        if count == step:
            raise Killed
        return value

    return loss


def test_killed_run_goes_on_to_the_same_bits(tmp_path):
    whole = network()
    expected = train(whole)
    often = replace(QUICK, checkpoint_seconds=0.0)  # a checkpoint after every step
    for death in (17, 20):  # killed within step 17, and again within the twentieth step after that
        with pytest.raises(Killed):
            train(network(), often, dies_at(death), folder=tmp_path)
    assert state_of(tmp_path)["step"] == 16 + 19
    resumed = network()
    nn.init.zeros_(resumed.weight)
    result = train(resumed, often, folder=tmp_path)
    assert same(whole, resumed)
    assert result.history == expected.history
    assert (result.best_step, result.best_loss) == (expected.best_step, expected.best_loss)


def test_kill_between_checkpoints_repeats_the_steps_since(tmp_path, monkeypatch):
    whole = network()
    train(whole)
    clock = iter(range(10_000))
    monkeypatch.setattr("reprior.networks.fit.time.monotonic", lambda: float(next(clock)))
    sparse = replace(QUICK, checkpoint_seconds=9.0)
    with pytest.raises(Killed):
        train(network(), sparse, dies_at(25), folder=tmp_path)
    step = state_of(tmp_path)["step"]
    assert 0 < step < 24
    resumed = network()
    train(resumed, sparse, folder=tmp_path)
    assert same(whole, resumed)


def test_interrupted_run_goes_on_to_the_same_bits(tmp_path):
    whole = network()
    expected = train(whole)
    count = 0

    def loss(module: nn.Module, rows: Tensor, generator: Generator) -> Tensor:
        nonlocal count
        count += 1
        value = noisy_loss(module, rows, generator)
        if count == 30:
            raise KeyboardInterrupt
        return value

    with pytest.raises(KeyboardInterrupt):
        train(network(), replace(QUICK, checkpoint_seconds=0.0), loss, folder=tmp_path)
    assert state_of(tmp_path)["step"] == 29
    resumed = network()
    result = train(resumed, folder=tmp_path)
    assert same(whole, resumed)
    assert result.history == expected.history


def test_finished_run_is_not_trained_again(tmp_path):
    module, again = network(), network()
    first = train(module, folder=tmp_path)

    second = fit(again, never, held_out, len(X), QUICK, seed=3, progress=False, folder=tmp_path)
    assert same(module, again)
    assert second.history == first.history
    assert second.seconds == pytest.approx(first.seconds, abs=0.5)


def test_run_stopped_by_patience_stays_stopped(tmp_path):
    settings = replace(QUICK, steps=1_000, patience=2)

    values = iter(range(1, 1_000))

    def worse(_: nn.Module) -> float:
        return float(next(values))

    one = fit(network(), noisy_loss, worse, 256, settings, 3, progress=False, folder=tmp_path)
    two = fit(network(), noisy_loss, worse, 256, settings, 3, progress=False, folder=tmp_path)
    assert (one.steps, two.steps, two.stopped) == (30, 30, "patience")


@pytest.mark.parametrize(
    ("change", "named"), [({"learning_rate": 0.01}, "learning_rate"), ({"steps": 70}, "steps"), ({}, "seed")]
)
def test_another_run_begins_anew_and_says_so(tmp_path, change, named):
    kept = network()
    train(kept, folder=tmp_path)
    alone, beside = network(), network()
    settings, seed = replace(QUICK, **change), 3 if change else 5
    fit(alone, noisy_loss, held_out, 256, settings, seed, progress=False)
    with pytest.warns(UserWarning, match=f"other settings only.* differ in: {named}$"):
        fit(beside, noisy_loss, held_out, 256, settings, seed, progress=False, folder=tmp_path)
    assert same(alone, beside)
    again = network()
    assert train(again, loss=never, folder=tmp_path).steps == 60  # the first run is still there
    assert same(kept, again)


def test_the_key_tells_data_sets_apart(tmp_path):
    key = {"x": torch.zeros(3), "sizes": (1, 2)}
    train(network(), folder=tmp_path, key=key)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(network(), loss=never, folder=tmp_path, key={"x": torch.zeros(3), "sizes": (1, 2)})
    with pytest.warns(UserWarning, match="differ in: x$"):
        train(network(), folder=tmp_path, key={**key, "x": torch.ones(3)})


def test_another_network_begins_anew(tmp_path):
    train(network(), folder=tmp_path)
    with pytest.warns(UserWarning, match="differ in: network$"):
        train(nn.Sequential(nn.Linear(3, 1)), folder=tmp_path)


def test_how_often_it_is_saved_may_change(tmp_path):
    train(network(), replace(QUICK, checkpoint_seconds=0.0), folder=tmp_path)
    train(network(), replace(QUICK, checkpoint_seconds=5.0), loss=never, folder=tmp_path)


def test_a_damaged_state_is_made_again(tmp_path):
    whole, again = network(), network()
    train(whole, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.warns(UserWarning, match="damaged file was removed"):
        train(again, folder=tmp_path)
    assert same(whole, again)


# --- settings -----------------------------------------------------------------------------------------------


def rates_of(settings: Training) -> list[float]:
    """The learning rate of each step, and of the one after the last."""
    optimiser = torch.optim.AdamW(nn.Linear(1, 1).parameters(), lr=settings.learning_rate)
    scheduler = scheduler_of(settings, optimiser)
    rates = []
    for _ in range(settings.steps + 1):
        rates.append(float(optimiser.param_groups[0]["lr"]))
        optimiser.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_learning_rate_follows_its_formula(schedule):
    first, last = 1e-2, 1e-4
    rates = rates_of(Training(steps=100, schedule=schedule, learning_rate=first, final_learning_rate=last))
    share = {
        "cosine": lambda u: (1 + math.cos(math.pi * u)) / 2,
        "linear": lambda u: 1 - u,
        "constant": lambda u: 1.0,
    }[schedule]
    assert rates == pytest.approx([last + share(step / 100) * (first - last) for step in range(101)], rel=1e-9)
    assert all(a >= b for a, b in pairwise(rates))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_learning_rate_goes_on_where_it_was(tmp_path, schedule):
    settings = replace(QUICK, schedule=schedule, checkpoint_seconds=0.0)
    whole, resumed = network(), network()
    train(whole, settings)
    with pytest.raises(Killed):
        train(network(), settings, dies_at(35), folder=tmp_path)
    train(resumed, settings, folder=tmp_path)
    assert same(whole, resumed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schedule": "step"}, "schedule 'step' is unknown"),
        ({"steps": 0}, "steps must be at least 1; got 0"),
        ({"batch": 0}, "batch must be at least 1; got 0"),
        ({"patience": 0}, "patience must be at least 1; got 0"),
        ({"validation": 0.0}, r"validation must lie in \(0, 0.9\)"),
        ({"ema": 1.0}, r"ema must lie in \[0, 1\); got 1.0"),
        ({"learning_rate": 0.0}, "must be positive; got 0.0"),
        ({"clip": -1.0}, "must be positive"),
        ({"final_learning_rate": 0.1}, r"between 0 and learning_rate .0.002.; got 0.1"),
    ],
)
def test_training_settings_are_checked(arguments, message):
    with pytest.raises(InputError, match=message):
        Training(**arguments)
