"""The parts of twisted SMC: unbiased weights, the base's own kernel, general log r, many observations, failures."""

from __future__ import annotations

import math

import pytest
import torch
from exact_cases import C, denoiser, drawn, errors, marginal, observation, problem, target
from torch import distributions as td

from reprior.diagnostics.c2st import c2st as c2st_fast
from reprior.diffusion.sampler import Sampler
from reprior.diffusion.schedule import noise_grid
from reprior.errors import InputError
from reprior.methods.smc import SMC, SMCSettings
from reprior.methods.smc.learned import LearnedTwist
from reprior.methods.smc.moves import chosen, duplicates, separated
from reprior.methods.smc.product import ProductTwist, additive
from reprior.methods.smc.sampler import twisted
from reprior.methods.smc.spread import Spread
from reprior.weights import relative_ess, systematic


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def posterior(x: torch.Tensor, n: int, seed: int) -> torch.Tensor:
    """Draws of p(theta | x), with shape (n, 1, d)."""
    return (x / (1 + C) + math.sqrt(C / (1 + C)) * torch.randn(n, 1, len(x), generator=generator(seed))).float()


def log_r_of(name: str, d: int):
    change = problem(target(name, d), d).change
    return change, lambda theta: change(theta).double()


def passed(name: str, d: int, n: int, seed: int, groups: int = 1, twist=None, steps: int = 32):
    change, log_r = log_r_of(name, d)
    x = observation(d)
    spread = Spread.of(posterior(x, 400, 99))
    if twist is None:
        points = change.scale.forward(torch.cat([change.draw(2_000, 0), torch.randn(2_000, d, generator=generator())]))
        twist = ProductTwist(log_r, additive(log_r, points[1_800:2_200].double()), points.double())  # pyright: ignore
    z = posterior(x, n, seed + 1_000) + 5.0 * torch.randn(n, 1, d, generator=generator(seed))
    grid = noise_grid(5.0, 0.002, steps, 20.0)
    return twisted(denoiser(x), twist.bind(spread), log_r, spread, z, grid, generator(seed), groups), twist


class NoTwist:
    """psi = 1: the particles follow the base."""

    def bind(self, spread):
        def twist(mean, s, z):
            d = mean.shape[-1]
            zero = torch.zeros(mean.shape[:-1], dtype=torch.float64)
            return (
                zero,
                torch.zeros_like(mean, dtype=torch.float64),
                torch.zeros(mean.shape[1], d, d, dtype=torch.float64),
            )

        return twist


def test_without_a_twist_it_is_the_base():
    x = observation(2)
    out, _ = passed("laplace", 2, 20_000, 0, twist=NoTwist())
    theta, sd = out.theta[:, 0], math.sqrt(C / (1 + C))
    assert torch.allclose(theta.mean(0), x / (1 + C), atol=4 * sd / 20_000**0.5)
    assert torch.allclose(theta.std(0), torch.tensor(sd), rtol=0.02)
    log_w = log_r_of("laplace", 2)[1](out.theta)  # nothing but r weighs them
    assert torch.allclose(out.log_w - log_w, torch.zeros_like(log_w), atol=1e-5)


def test_weights_are_unbiased():
    """The mean over 200 small runs is Z: of 64 particles each, resampled on the way."""
    exact = sum(marginal("half_normal", float(v))[2] for v in observation(2))
    _, twist = passed("half_normal", 2, 64, 0)
    ratio = torch.stack([passed("half_normal", 2, 64, s, twist=twist)[0].group_log_z[0, 0] for s in range(200)])
    ratio = (ratio - exact).exp()
    assert float(ratio.mean()) == pytest.approx(1.0, abs=3.5 * float(ratio.std()) / 200**0.5 + 0.01)


def test_weights_stay_unbiased_with_a_poor_twist():
    class Poor:
        def __init__(self, twist):
            self.inner = twist

        def bind(self, spread):
            own = self.inner.bind(spread)

            def twist(mean, s, z):
                value, slope, curve = own(mean, s, z)
                return 0.5 * value + 0.2 * mean[..., 0], 0.3 * slope + 0.5, 0.1 * curve

            return twist

    exact = sum(marginal("laplace", float(v))[2] for v in observation(2))
    _, twist = passed("laplace", 2, 64, 0)
    ratio = torch.stack([passed("laplace", 2, 128, s, twist=Poor(twist))[0].group_log_z[0, 0] for s in range(200)])
    ratio = (ratio - exact).exp()
    assert float(ratio.mean()) == pytest.approx(1.0, abs=3.5 * float(ratio.std()) / 200**0.5 + 0.01)


def test_error_falls_with_particles():
    exact = sum(marginal("half_normal", float(v))[2] for v in observation(5))
    _, twist = passed("half_normal", 5, 64, 0)
    off = [
        torch.stack([passed("half_normal", 5, n, s, twist=twist)[0].group_log_z[0, 0] - exact for s in range(12)])
        .square()
        .mean()
        .sqrt()
        for n in (128, 2_048)
    ]
    assert off[1] < 0.6 * off[0]


def test_groups_do_not_mix():
    out, _ = passed("far_modes", 3, 4_096, 3, groups=16)
    assert out.group_log_z.shape == (16, 1)
    parts = out.log_w.reshape(16, 256, 1)
    assert torch.allclose(out.group_log_z, torch.logsumexp(parts, 1) - math.log(256))


@pytest.mark.parametrize("d", [2, 6])
def test_moves_leave_q_as_it_is(d):
    """Started at q with every draw doubled, the moves leave q, and few copies."""
    q = target("normal", d)
    var = 1 / ((1 + C) / C - 1 + 1 / 0.16)  # of q(theta | x)
    x = observation(d)
    mean = var * (x / C + 0.8 / 0.16)
    exact = mean + math.sqrt(var) * torch.randn(2_000, d, generator=generator(5))
    change = problem(q, d).change
    theta = separated(denoiser(x), exact.repeat(2, 1), lambda t: change(t).double(), 0.4, 24, generator(1))
    assert float(duplicates(theta).float().mean()) <= 0.05
    assert float(((theta.mean(0) - exact.mean(0)) / math.sqrt(var)).abs().max()) < 0.1
    assert torch.allclose(theta.std(0), torch.tensor(math.sqrt(var)), rtol=0.06)


def test_a_choice_has_no_copies_where_weights_allow():
    log_w = 0.3 * torch.randn(4_000, 3, generator=generator(), dtype=torch.float64)
    index = chosen(log_w, 1_000, generator())
    assert index.shape == (1_000, 3)
    assert all(len(index[:, k].unique()) == 1_000 for k in range(3))


def test_duplicates():
    theta = torch.tensor([[0.0, 1.0], [2.0, 3.0], [0.0, 1.0], [0.0, 1.0]])
    assert duplicates(theta).tolist() == [False, False, True, True]


def normal(t):
    return -0.5 * t.square().sum(-1)


GENERAL = {
    "banana": lambda t: (
        -0.5 * ((t[..., 0] / 0.8) ** 2 + ((t[..., 1] - 0.5 * t[..., 0] ** 2 + 0.3) / 0.3) ** 2) + normal(t[..., 2:])
    ),
    "ring": lambda t: -0.5 * ((t[..., :2].norm(dim=-1) - 1) / 0.1) ** 2 + normal(t[..., 2:]),
    "sum": lambda t: torch.where((t[..., 0] + t[..., 1] - 0.8).abs() < 0.15, normal(t), -torch.inf),
    "two_modes": lambda t: torch.logaddexp(-((t - 1.2) ** 2).sum(-1) / 0.18, -((t + 0.8) ** 2).sum(-1) / 0.18),
    "edge": lambda t: torch.where((t > 0.4).all(-1), -((t - 0.2) ** 2).sum(-1) / 0.5, -torch.inf),
    "histogram": lambda t: torch.tensor([-69.0, -1.6, 0.0, -1.2, 0.7, -0.36, -69.0])[
        torch.bucketize(t.contiguous(), torch.tensor([-1.5, -0.5, 0.0, 0.4, 1.0, 2.0]))
    ].sum(-1),
}


@pytest.mark.parametrize(
    ("name", "d"),
    [(name, 2) for name in GENERAL] + [(name, 5) for name in GENERAL if name not in ("two_modes", "edge")],
)
def test_general_log_density(name, d):
    """A callable log q, of which no gradient is asked: against base draws resampled by r, a million of them."""
    x = observation(d)
    big = posterior(x, 1_000_000, 7)[:, 0]
    log_w = (GENERAL[name](big) - normal(big)).double()
    assert relative_ess(log_w) > 0.01  # else the reference itself is poor
    reference = big[systematic(log_w, 4_000, generator())]
    out = drawn(GENERAL[name], d)
    assert c2st_fast(reference, out.theta[:, 0]) < 0.53
    exact = float(torch.logsumexp(log_w, 0)) - math.log(len(log_w)) - 0.5 * d * math.log(2 * math.pi)
    # log q is up to a constant: `normal` leaves out that of p.
    exact = exact + d * math.log(2 * math.pi)
    assert abs(out.figures["log_z"][0] - exact) < 4 * out.figures["log_z_error"][0] + 0.01
    assert out.figures["duplicates"][0] < 0.05


def test_two_far_modes_in_ten_dimensions():
    """Against the closed form: each mode of q, a Gaussian, has a Gaussian posterior."""
    d = 10
    x = 0.3 * observation(d)
    out = drawn(GENERAL["two_modes"], d, x=x)
    var = 1 / (1 / C + 1 / 0.09)
    log_share = torch.stack([-((x - m) ** 2).sum() / (2 * (C + 0.09)) for m in (1.2, -0.8)])
    share = float(torch.softmax(log_share, 0)[0])
    near = out.theta[:, 0].mean(1) > 0.2
    assert float(near.float().mean()) == pytest.approx(share, abs=0.05)
    mode = 1.2 if share > 0.5 else -0.8
    theta = out.theta[near if share > 0.5 else ~near, 0]
    assert float(((theta.mean(0) - var * (x / C + mode / 0.09)) / var**0.5).abs().max()) < 0.1
    assert torch.allclose(theta.std(0), torch.tensor(var**0.5), rtol=0.06)


def test_many_observations_as_one_by_one():
    x = torch.randn(6, 3, generator=generator(2))
    out = drawn(target("laplace", 3), 3, n=2_000, x=x)
    assert out.theta.shape == (2_000, 6, 3)
    for k in range(6):
        mean, sd, _, log_z = errors("laplace", out.theta[:, k], x[k])
        assert mean < 0.12
        assert sd < 0.08
        assert abs(out.figures["log_z"][k] - log_z) < 4 * out.figures["log_z_error"][k]


def test_an_observation_that_cannot_be_drawn_costs_no_other():
    box = td.Independent(td.Uniform(torch.full((2,), 3.0), torch.full((2,), 3.5)), 1, validate_args=False)
    x = torch.tensor([[4.0, 4.0], [-25.0, -25.0]])
    out = drawn(box, 2, n=500, x=x)
    assert not out.failed.get(0)
    assert bool(torch.isfinite(out.theta[:, 0]).all())
    good = out.theta[:, 0]
    assert bool(((good >= 3.0) & (good <= 3.5)).all())
    if 1 in out.failed:
        assert bool(out.theta[:, 1].isnan().all())


def test_the_same_seed_gives_the_same_draws():
    first, again = (drawn(target("laplace", 2), 2, n=500, seed=3) for _ in range(2))
    assert torch.equal(first.theta, again.theta)


def test_memory_is_bounded_without_changing_the_answer(monkeypatch):
    from reprior.methods.smc import path

    monkeypatch.setattr(path, "BLOCK", 600)
    out = drawn(target("laplace", 2), 2, n=4_000)
    mean, sd, _, log_z = errors("laplace", out.theta[:, 0], observation(2))
    assert mean < 0.1
    assert sd < 0.05
    assert abs(out.figures["log_z"][0] - log_z) < 4 * out.figures["log_z_error"][0]


def test_a_learned_ratio_as_twist():
    """Even a wrong ratio, log r at the denoised mean, ends at q: weights make up for it."""
    d = 2
    change, _ = log_r_of("laplace", d)
    twist = LearnedTwist(lambda z, s, mean: change(mean))
    out, _ = passed("laplace", d, 8_000, 0, twist=twist)
    theta = out.theta[chosen(out.log_w, 4_000, generator())[:, 0], 0]
    mean, sd, _, log_z = errors("laplace", theta, observation(d))
    assert mean < 0.1
    assert sd < 0.06
    assert float(out.group_log_z[0, 0]) == pytest.approx(log_z, abs=0.05)


def test_settings_are_checked():
    for bad in ({"particles": 0.5}, {"fewest": 10}, {"steps": 2}, {"pilot": 5}, {"average": 1}):
        with pytest.raises(InputError, match="smc needs"):
            SMCSettings(**bad)


def test_it_says_what_was_done():
    out = drawn(target("laplace", 2), 2, n=200)
    assert "particles went from noise" in out.told[0]
    assert "one-dimensional tables" in out.told[0]
    light = SMC(problem(target("laplace", 2), 2)).lighter()
    assert light.draw(denoiser(observation(2)), 50, Sampler(), generator()).theta.shape == (50, 1, 2)
