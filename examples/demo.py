"""The demo: simulate, train, change the prior, and compare with the exact posterior. Takes about two minutes.

Ten bacteria grow at a rate g in a flask that can feed K of them, and are counted at twelve times:

    N(t) = K / (1 + (K / 10 - 1) exp(-g t)),      x_i ~ Poisson(N(t_i)),      theta = (log g, log K)

The counts end before the flask is full, so they leave K open, and its prior matters. The posterior was trained under a
wide prior p; then somebody measures K to 15 %, which makes the new prior q. With two parameters and a known likelihood
the exact posterior is a sum over a grid. `reprior` never sees that likelihood.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal, Poisson

import reprior

NAMES = ("log growth rate", "log capacity")
TIMES = torch.linspace(0, 5, 12)  # hours
P = Independent(Normal(torch.tensor([0.0, 6.0]), torch.tensor([0.3, 0.7])), 1)
Q = Independent(Normal(torch.tensor([0.0, 5.85]), torch.tensor([0.3, 0.15])), 1)
TRUTH = torch.tensor([[-0.2, 6.0]])


def expected_counts(theta: Tensor, t: Tensor = TIMES) -> Tensor:
    """N(t) for parameters with shape (n, 2): shape (n, times)."""
    rate, capacity = theta.exp().split(1, dim=1)
    return capacity / (1 + (capacity / 10 - 1) * torch.exp(-rate * t))


def exact_posterior(prior: Distribution, x: Tensor, points: int = 800) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Mean, standard deviation, and (log g, log K, probability) on a grid, each with shape (points, points)."""
    u, v = torch.meshgrid(torch.linspace(-0.5, 0.1, points), torch.linspace(5.0, 8.0, points), indexing="ij")
    theta = torch.stack([u, v], -1).reshape(-1, 2)
    log_density = Poisson(expected_counts(theta)).log_prob(x).sum(1) + prior.log_prob(theta)
    weights = torch.softmax(log_density.double(), 0)
    mean = weights @ theta.double()
    sd = (weights @ (theta - mean).square()).sqrt()
    return mean, sd, (u, v, weights.reshape(u.shape))


def run(simulations: int, steps: int, draws: int, seed: int, progress: bool = True) -> dict:
    """The demo itself."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    theta = P.sample((simulations,))
    x = torch.poisson(expected_counts(theta))
    observed = torch.poisson(expected_counts(TRUTH), generator=torch.Generator().manual_seed(1))[0]

    network, training = reprior.MLPSettings(width=96, blocks=2), reprior.Training(steps=steps)
    posterior = reprior.train(
        theta, x, prior=P, settings=network, training=training, parameters=NAMES, seed=seed, progress=progress
    )
    adapted = reprior.adapt(posterior, Q)  # no simulation and no training
    before = posterior.sample((draws,), x=observed, seed=seed)
    after, info = adapted.sample((draws,), x=observed, seed=seed, return_info=True)
    report = reprior.diagnose(adapted, x=observed)
    return {"observed": observed, "before": before, "after": after, "info": info, "report": report}


def print_table(found: dict) -> None:
    """Means and standard deviations beside the exact ones; errors of the mean in exact standard deviations."""
    print(f"\n{'prior':7}{'parameter':18}{'reprior':>16}{'exact':>17}{'mean off by':>14}{'sd ratio':>10}")
    for label, prior, draws in (("p", P, found["before"]), ("q", Q, found["after"])):
        mean, sd, _ = exact_posterior(prior, found["observed"])
        for i, name in enumerate(NAMES):
            ours, exact = (float(draws[:, i].mean()), float(draws[:, i].std())), (float(mean[i]), float(sd[i]))
            row = "".join(f"{m:9.3f} ± {s:.3f}" for m, s in (ours, exact))
            print(f"{label:7}{name:18}{row}{(ours[0] - exact[0]) / exact[1]:+11.2f} sd{ours[1] / exact[1]:10.2f}")


def draw_picture(found: dict, path: Path) -> None:
    """The counts with what both posteriors expect, and both posteriors beside the exact ones."""
    t = torch.linspace(0, 10, 80)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), constrained_layout=True)
    for colour, prior, label, draws in (
        ("#6b7a8f", P, "prior p of the training", found["before"]),
        ("#c8502d", Q, "new prior q", found["after"]),
    ):
        low, middle, high = expected_counts(draws, t).quantile(torch.tensor([0.05, 0.5, 0.95]), 0)
        left.fill_between(t, low, high, color=colour, alpha=0.25, linewidth=0)
        left.plot(t, middle, color=colour, label=f"{label}: 90 % of the curves")
        u, v, weights = exact_posterior(prior, found["observed"])[2]
        right.scatter(*draws[:1_500].T, s=8, color=colour, alpha=0.4, linewidths=0, label=f"reprior, {label}")
        heights = weights.flatten().sort(descending=True).values
        levels = [float(heights[(heights.cumsum(0) < mass).sum()]) for mass in (0.9, 0.5)]
        right.contour(u, v, weights, levels, colors=colour, linewidths=1.6)
    left.plot(TIMES, found["observed"], "ko", markersize=3.5, label="counts")
    left.set(title="The counts end before the flask is full", xlabel="hours", ylabel="bacteria")
    right.plot([], [], "k", linewidth=1.6, label="exact: holds 50 % and 90 %")
    right.plot(*TRUTH.T, "k+", markersize=9, markeredgewidth=2, label="truth")
    right.set(title="A new prior, and no new simulation", xlabel=NAMES[0], ylabel=NAMES[1])
    right.set(xlim=(-0.4, -0.05), ylim=(5.6, 7.3))
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=9, markerscale=1.4)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Runs the demo from the command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture and the report")
    options.add_argument("--simulations", type=int, default=40_000)
    options.add_argument("--steps", type=int, default=6_000, help="training steps")
    options.add_argument("--draws", type=int, default=10_000, help="posterior samples")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    found = run(given.simulations, given.steps, given.draws, given.seed)
    print(found["info"], found["report"], sep="\n")
    print_table(found)
    draw_picture(found, given.out / "demo.png")
    found["report"].to_html(given.out / "report.html")
    print(f"\nwrote {given.out / 'demo.png'} and {given.out / 'report.html'}")


if __name__ == "__main__":
    main()
