"""Speed, as ratios from one run on one machine (times depend on the machine, ratios much less).

Times are CPU seconds of one thread: what else the machine does counts for little.

- sampling a Simformer on Turin (4 + 101 tokens) with x encoded once, against dense attention, at equal steps;
- 5,000 samples of each base;
- training steps a second against sbi's NPSE with a network of about the same size;
- guided against unguided sampling, and what a change of prior costs against retraining;
- a training step of the paper's ratio network in bfloat16 against float32;
- the memory that learning a ratio on the paper's 470,000 pairs takes.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import reprior
from reprior import priors
from reprior.diffusion.sampler import Sampler, run
from reprior.errors import InputError
from reprior.methods import Problem
from reprior.methods.learned import NRE, PAPER
from reprior.networks.fit import Training
from reprior.networks.mlp import MLPSettings
from reprior.networks.ratio import RatioMLP
from reprior.networks.simformer import SimformerBase, SimformerSettings
from reprior.target import make_change
from reprior_bench import tasks
from reprior_bench.bases import BASE_SEED, BaseSpec, get_base
from reprior_bench.tasks import BENCHMARK

__all__ = ["PARTS", "measure"]

Row = tuple[str, str, str, str]  # what, ours, the alternative, ratio and goal
COLUMNS = ("what", "reprior", "alternative", "ratio and goal")


def seconds(work: Callable[[], object], repeats: int = 1) -> float:
    """The shortest CPU time of some repeats."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def encoded_once(patch: int, n: int = 1_000, steps: int = 8) -> Row:
    """A Simformer of Turin's size (d = 4, m = 101), sampled with x encoded once and with dense attention.

    Arguments:
        patch: how many variables share a token; 1 is the paper's choice.
        n: the number of samples.
        steps: sampler steps.
    """
    times, tokens = {}, 0
    for attention in ("shared", "dense"):
        torch.manual_seed(0)
        settings = SimformerSettings(attention=attention, theta_patch=patch, patch=patch)
        base = SimformerBase(4, 101, settings).requires_grad_(False).eval()
        tokens = base.grid.tokens
        x = torch.randn(1, 101)
        # Encoding x is part of the time.
        times[attention] = seconds(
            lambda base=base, x=x: run(base.condition(x), n, Sampler(steps=steps), torch.Generator()), 2
        )
    ratio = times["dense"] / times["shared"]
    name = f"Simformer, {tokens} tokens, {n} samples, {steps} steps: encoded once v. dense"
    return name, f"{times['shared']:.2f} s", f"{times['dense']:.2f} s", f"{ratio:.1f} x faster (goal 10)"


def sampling(folder: Path) -> list[Row]:
    """5,000 samples of each MLP base."""
    rows = []
    for name in BENCHMARK:
        posterior = get_base(BaseSpec(name, "id"), folder)
        _, x = tasks.get(name).observations("id", 1, seed=BASE_SEED + 5)
        took = seconds(lambda p=posterior, x=x: p.sample((5_000,), x=x[0], seed=0), 2)
        rows.append((f"5,000 samples, {name}", f"{took:.2f} s", "", "goal under 5 s"))
    return rows


def training_steps(steps: int = 150) -> Row:
    """Steps a second on Two Moons against sbi's NPSE, batch 512, about as many weights."""
    from sbi.inference import NPSE
    from sbi.neural_nets import posterior_score_nn

    task = tasks.get("two_moons")
    prior = task.training_prior("id")
    theta = priors.sample(prior, 20_000, BASE_SEED)
    x = task.simulate(theta, seed=BASE_SEED + 1)
    training = Training(steps=steps, evaluate_every=steps, batch=512)
    began = time.process_time()
    ours = reprior.train(theta, x, prior, settings=MLPSettings(), training=training, progress=False)
    mine = time.process_time() - began
    weights = sum(p.numel() for p in ours.base.parameters())
    net = posterior_score_nn(model="mlp", hidden_features=220, num_layers=5)
    trainer = NPSE(prior=prior, vf_estimator=net, show_progress_bars=False)  # pyright: ignore[reportArgumentType]
    trainer.append_simulations(theta, x)
    epochs = max(1, round(steps * 512 / (0.9 * len(theta))))
    theirs = seconds(
        lambda: trainer.train(
            training_batch_size=512, max_num_epochs=epochs, validation_fraction=0.1, stop_after_epochs=10_000
        )
    )
    trained: Any = trainer._neural_net
    count = sum(p.numel() for p in trained.parameters())
    done = epochs * int(0.9 * len(theta)) // 512
    us, them = steps / mine, done / theirs
    what = f"training steps a second, batch 512 ({weights:,} v. {count:,} weights): reprior v. sbi NPSE"
    return what, f"{us:.1f} /s", f"{them:.1f} /s", f"{us / them:.2f} x (goal 1)"


def ratio_step(steps: int = 40) -> Row:
    """Training steps of the paper's ratio network, hidden layers in bfloat16 and in float32."""
    batch = PAPER.training.batch
    z, s, x = torch.randn(batch, 5), torch.rand(batch, 1) + 0.1, torch.randn(batch, 8)
    times = {}
    for precision in ("bfloat16", "float32"):
        network = RatioMLP(5, 8, 1, replace(PAPER.network, precision=precision)).train()
        optimiser = torch.optim.AdamW(network.parameters(), fused=True)

        def work(network: RatioMLP = network, optimiser: torch.optim.Optimizer = optimiser) -> None:
            for _ in range(steps):
                optimiser.zero_grad()
                network(z, s, network.encode(x)).square().mean().backward()
                optimiser.step()

        times[precision] = seconds(work, 2) / steps
    low, full = times["bfloat16"], times["float32"]
    what = "a training step of the paper's ratio network: bfloat16 v. float32"
    return what, f"{1e3 * low:.0f} ms", f"{1e3 * full:.0f} ms", f"{full / low:.1f} x faster"


def change_of_prior(folder: Path) -> list[Row]:
    """What a learned ratio costs, guided sampling, and retraining from scratch."""
    rows = []
    for name in ("two_moons", "gaussian_linear", "oup"):
        task = tasks.get(name)
        spec = BaseSpec(name, "ood")
        posterior = get_base(spec, folder)
        _, x = task.observations("ood", 1, seed=BASE_SEED + 5)
        began = time.process_time()
        adapted = reprior.adapt(posterior, task.target_prior("ood"), method="nre", seed=1)
        learn = time.process_time() - began
        plain = seconds(lambda p=posterior, x=x: p.sample((5_000,), x=x[0], seed=0), 2)
        guided = seconds(lambda a=adapted, x=x: a.sample((5_000,), x=x[0], seed=0), 2)
        began = time.process_time()
        free = reprior.adapt(posterior, task.target_prior("ood"), method="auto", seed=1)
        new = time.process_time() - began
        took = new + seconds(lambda a=free, x=x: a.sample((5_000,), x=x[0], seed=0))
        rows.append((f"{name}: learning a ratio (nre)", f"{learn:.1f} s", "", "goal under 60 s"))
        rows.append(
            (
                f"{name}: guided v. unguided sampling",
                f"{guided:.2f} s",
                f"{plain:.2f} s",
                f"{guided / plain:.2f} x (goal 2.5)",
            )
        )
        rows.append(
            (f"{name}: auto ({free.method.name}), new prior and 5,000 samples", f"{took:.1f} s", "", "goal under 15 s")
        )
        again = _retraining_seconds(spec)
        for how, cost in (("nre", learn), (free.method.name, took)):
            rows.append(
                (
                    f"{name}: change the prior ({how}) v. simulate and retrain",
                    f"{cost:.0f} s",
                    f"{again:.0f} s",
                    f"{again / cost:.0f} x cheaper (goal 10)",
                )
            )
    return rows


def _retraining_seconds(spec: BaseSpec, steps: int = 200) -> float:
    """Simulating under q and training a new base, from a short run scaled to all its steps."""
    task = tasks.get(spec.task)
    began = time.process_time()
    theta = priors.sample(task.target_prior(spec.regime), spec.simulations, BASE_SEED)
    x = task.simulate(theta, seed=BASE_SEED)
    simulate = time.process_time() - began
    training = replace(Training(), steps=steps, evaluate_every=steps)
    took = seconds(lambda: reprior.train(theta, x, task.target_prior(spec.regime), training=training, progress=False))
    return simulate + took / steps * Training().steps


def memory(folder: Path) -> Row:
    """Peak memory of a process that learns a ratio on the paper's training set, with all else it holds."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        pairs, peak = executor.submit(_paper_pairs, str(folder)).result()
    return f"oup: peak memory with {pairs:,} training pairs", f"{peak / 2**20:.2f} GB", "", "goal under 2 GB"


def _paper_pairs(folder: str) -> tuple[int, int]:
    torch.set_num_threads(1)
    posterior = get_base(BaseSpec("oup", "id"), folder)
    change = make_change(posterior.prior, tasks.get("oup").target_prior("id"), posterior.scales.theta, seed=0)
    settings = replace(PAPER, training=replace(PAPER.training, steps=20, evaluate_every=20))
    assert posterior.simulations is not None
    pairs = len(posterior.simulations) + settings.observations * settings.draws
    NRE.build(Problem(posterior, change), settings)
    return pairs, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in kB


PARTS: dict[str, Callable[[Path], list[Row]]] = {
    "encoding": lambda _: [encoded_once(1), encoded_once(SimformerSettings().patch)],
    "sampling": sampling,
    "training": lambda _: [training_steps(), ratio_step()],
    "change": change_of_prior,
    "memory": lambda folder: [memory(folder)],
}


def measure(folder: Path, parts: list[str]) -> list[dict[str, str]]:
    """The rows of some parts (`PARTS`), as dictionaries.

    Arguments:
        folder: the folder of the bases.
        parts: which parts.
    """
    if unknown := [part for part in parts if part not in PARTS]:
        raise InputError(f"part {unknown[0]!r} is unknown; allowed: {', '.join(PARTS)}")
    rows = [row for part in parts for row in PARTS[part](folder)]
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]
