"""The demo: simulate, train, change the prior, sample, and compare with the exact posterior.

The Ornstein-Uhlenbeck process under the out-of-distribution change of prior: p = N((1.5, 1.5), 0.5 I), and the new prior
q = N((1.8, 0), 0.5 I). The likelihood of this process is known, so the exact posterior is there to compare with.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from reprior import priors
from reprior_bench import metrics
from reprior_bench import tasks
from reprior.adapted import AdaptedPosterior, adapt
from reprior.networks.fit import Training
from reprior.info import Info
from reprior.networks.mlp import MLPSettings
from reprior.posterior import Posterior
from reprior.trainer import train

__all__ = ["DemoResult", "draw_picture", "run_demo"]

SEED = 11
TRUTH = (0.5, 0.0)  # a slow process: 25 points leave its level open, so the prior matters
NETWORK = MLPSettings(width=96, blocks=2)
TRAINING = Training(steps=6_000, batch=512, evaluate_every=500)


@dataclass(frozen=True)
class DemoResult:
    """What the demo found.

    Attributes:
        posterior: the trained base posterior.
        adapted: the adapted one.
        x: the observation, with shape (m,).
        before: samples under p, with shape (n, 2).
        after: samples under q, with shape (n, 2).
        exact: exact samples under q, with shape (n, 2).
        info: what `sample` said.
        rows: the table: name, mean and standard deviation of both parameters, C2ST against the exact posterior.
        seconds: the time each part took.
    """

    posterior: Posterior
    adapted: AdaptedPosterior
    x: Tensor
    before: Tensor
    after: Tensor
    exact: Tensor
    info: Info
    rows: list[tuple[str, str, str, str]]
    seconds: dict[str, float]


def run_demo(
    simulations: int = 30_000, samples: int = 4_000, training: Training = TRAINING, progress: bool = True
) -> DemoResult:
    """Runs the demo.

    Arguments:
        simulations: the number of simulations under p.
        samples: the number of posterior samples.
        training: how the base is trained.
        progress: show progress bars.
    """
    task = tasks.get("oup")
    p, q = task.training_prior("ood"), task.target_prior("ood")
    seconds, clock = {}, time.monotonic()
    theta = priors.sample(p, simulations, SEED)
    x = task.simulate(theta, seed=SEED + 1)
    seconds["simulate"], clock = time.monotonic() - clock, time.monotonic()
    posterior = train(
        theta,
        x,
        prior=p,
        settings=NETWORK,
        parameters=task.parameters,
        training=training,
        seed=SEED,
        progress=progress,
    )
    seconds["train"], clock = time.monotonic() - clock, time.monotonic()
    x_obs = task.simulate(torch.tensor([TRUTH]), seed=SEED + 2)
    before = posterior.sample((samples,), x=x_obs[0], seed=SEED)
    clock = time.monotonic()
    adapted = adapt(posterior, q)
    after, info = adapted.sample((samples,), x=x_obs[0], seed=SEED, return_info=True)
    seconds["change the prior and sample"] = time.monotonic() - clock
    exact = task.reference(x_obs[0], samples, "ood", prior=q, seed=SEED + 3)
    rows = []
    for name, draws in (("before (prior p)", before), (f"after (prior q, {adapted.method})", after)):
        rows.append((name, *_moments(draws), f"{metrics.c2st_fast(exact, draws):.3f}"))
    rows.append(("exact (prior q)", *_moments(exact), "0.5 is best"))
    return DemoResult(posterior, adapted, x_obs[0], before, after, exact, info, rows, seconds)


def _moments(draws: Tensor) -> tuple[str, str]:
    mean, std = draws.mean(0), draws.std(0)
    return f"{mean[0]:.3f} ± {std[0]:.3f}", f"{mean[1]:.3f} ± {std[1]:.3f}"


def draw_picture(result: DemoResult, path: str | Path) -> Path:
    """The two priors, and the posterior before and after beside the exact one."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    p, q = result.posterior.prior, result.adapted.change.target
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.8), constrained_layout=True)
    for prior, colour, label in ((p, "#7a7a7a", "prior p (training)"), (q, "#c8502d", "prior q (new)")):
        draws = priors.sample(prior, 4_000, seed=0)
        _contour(left, draws, colour, label)
    left.set_title("The prior changes", loc="left")
    right.scatter(*result.exact.T, s=3, color="#d9d9d9", label="exact posterior under q", rasterized=True)
    _contour(right, result.before, "#7a7a7a", f"before: C2ST {result.rows[0][3]}")
    _contour(right, result.after, "#c8502d", f"after ({result.adapted.method}): C2ST {result.rows[1][3]}")
    right.set_title("and so does the posterior, with no new simulation", loc="left")
    names = result.posterior.parameters
    for axis, corner in ((left, "upper right"), (right, "lower right")):
        axis.set_xlabel(names[0])
        axis.set_ylabel(names[1])
        axis.spines[["top", "right"]].set_visible(False)
        handles, labels = axis.get_legend_handles_labels()
        axis.legend(handles, labels, frameon=False, loc=corner, fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _contour(axis, draws: Tensor, colour: str, label: str) -> None:
    """Contours that hold 39 % and 86 % of the draws (one and two standard deviations of a Gaussian)."""
    from scipy.stats import gaussian_kde

    kde = gaussian_kde(draws.T.numpy())
    spread = draws.std(0) * 0.6
    low, high = (draws.min(0).values - spread).tolist(), (draws.max(0).values + spread).tolist()
    u, v = torch.meshgrid(torch.linspace(low[0], high[0], 90), torch.linspace(low[1], high[1], 90), indexing="xy")
    density = kde(torch.stack([u.flatten(), v.flatten()]).numpy()).reshape(u.shape)
    at_draws = torch.as_tensor(kde(draws[:1_000].T.numpy()))
    levels = [float(torch.quantile(at_draws, 1 - share)) for share in (0.86, 0.39)]
    axis.contour(u, v, density, levels=levels, colors=colour, linewidths=(1.2, 2.0))
    axis.plot([], [], color=colour, linewidth=2, label=label)
