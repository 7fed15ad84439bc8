"""Rejuvenation with the exact denoiser: Gaussian Linear OOD, where plain resampling fails, and its parts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from exact import exact_posterior, gaussian_posterior, problem_of
from torch import Tensor
from torch.distributions import (
    Exponential,
    Gamma,
    HalfCauchy,
    Independent,
    Laplace,
    LogNormal,
    MultivariateNormal,
    Normal,
    StudentT,
    Uniform,
)

import reprior
from reprior.diagnostics.c2st import c2st
from reprior.diffusion.sampler import Sampler
from reprior.errors import InputError, RefusedError
from reprior.methods import Drawn, SIRSettings, rejuvenate
from reprior.methods.plug_in import PlugIn
from reprior.methods.pools import curvature, mean_error, spread_of
from reprior.methods.rejuvenate import Rejuvenate, RejuvenateSettings
from reprior.methods.transport import largest_noise
from reprior.target import make_change
from reprior.weights import relative_ess, temper_step

# Gaussian Linear, out of distribution: p = N(0, 1.1 I - 0.1), q = N(1.1, 0.8 I + 0.2), x = theta + N(0, 0.1 I).
LINEAR, _ = gaussian_posterior(dim=6, c=0.1, rho=-0.1)
Q = MultivariateNormal(torch.full((6,), 1.1), 0.8 * torch.eye(6) + 0.2)
N = 4_000
NEAR = 3  # a seed whose observation has a relative ESS of 0.03

SMALL, PRIOR = gaussian_posterior(dim=2, c=0.3)
SCALE = SMALL.scales.theta
LAPLACE = Independent(Laplace(torch.tensor([0.5, 0.0]), torch.full((2,), 0.5)), 1)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def observation(seed: int) -> Tensor:
    """An observation that q makes likely, with shape (6,)."""
    noise = torch.randn(2, 6, generator=generator(seed))
    return Q.mean + Q.scale_tril @ noise[0] + 0.1**0.5 * noise[1]


def reference(x: Tensor, n: int = N) -> Tensor:
    law = exact_posterior(Q, x, 0.1)
    return law.mean + torch.randn(n, 6, generator=generator(99)) @ law.scale_tril.T


def kernel_of(told: str) -> str:
    """What moved the pool, from the sentence that says what was done."""
    return told.rsplit(" by ", 1)[1]


# --- Gaussian Linear, out of distribution ----------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["plug_in", "choose"])
def test_gaussian_linear_ood(kernel):
    x = observation(NEAR)
    adapted = reprior.adapt(LINEAR, Q, "rejuvenate", RejuvenateSettings(kernel=kernel))
    theta, info = adapted.sample((N,), x, seed=0, return_info=True)
    assert 0.005 < info.relative_ess[0] < 0.05
    assert kernel_of(info.told[0]) == ("plug_in" if kernel == "plug_in" else "transport")
    # Two exact sets score 0.5 with a standard error of sqrt(.25 / 8000) = 0.006.
    assert c2st(reference(x), theta) < 0.53


def test_plain_resampling_fails_there():
    x = observation(NEAR)
    adapted = reprior.adapt(LINEAR, Q, "sir", SIRSettings(10_000))
    theta, info = adapted.sample((N,), x, seed=0, return_info=True)
    assert info.figures["duplicates"][0] > 0.4 * N
    assert c2st(reference(x), theta) > 0.62


def test_gaussian_linear_further_out():
    x = observation(NEAR) + 1.3
    adapted = reprior.adapt(LINEAR, Q, "rejuvenate", RejuvenateSettings(kernel="plug_in"))
    theta, info = adapted.sample((N,), x, seed=0, return_info=True)
    assert info.relative_ess[0] < 0.003
    assert info.figures["stages"][0] > 1
    assert c2st(reference(x), theta) < 0.54  # plain resampling: 0.9


# --- tempering -------------------------------------------------------------------------------------------------------


class Stepwise(Rejuvenate):
    """Keeps the powers that were reached."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.powers: list[float] = []

    def _melt(self, denoiser, how, pool, s0, precision, power, generator):
        self.powers.append(power)
        return super()._melt(denoiser, how, pool, s0, precision, power, generator)


def far(dim: int = 2) -> MultivariateNormal:
    return MultivariateNormal(torch.full((dim,), 2.0), 0.3 * torch.eye(dim))


@pytest.mark.parametrize("stages", [12, 2, 1])
def test_tempering_rises_to_power_one(stages):
    method = Stepwise(problem_of(SMALL, far()), RejuvenateSettings(pool=1_000, stages=stages, ess=0.3))
    base = SMALL.condition(torch.tensor([[-0.5, -0.5]]))
    drawn = method.draw(base, 300, Sampler(), generator())
    assert drawn.theta.shape == (300, 1, 2)
    assert method.powers == sorted(method.powers)
    assert method.powers[-1] == 1.0
    assert all(0 < power < 1 for power in method.powers[:-1])
    assert drawn.figures["stages"] == (len(method.powers),)
    assert len(method.powers) <= stages
    assert stages == 1 or len(method.powers) > 1


def test_each_step_keeps_the_asked_ess():
    log_w = 3 * torch.randn(5_000, generator=generator())
    rise = temper_step(log_w, 1.0, 0.25)
    assert relative_ess(rise * log_w) == pytest.approx(0.25, rel=1e-3)
    assert temper_step(log_w, rise / 2, 0.25) == rise / 2  # all that is wanted is less than a step
    assert temper_step(torch.tensor([0.0, 1e9]), 1.0, 0.9) == 1e-3  # it moves on, however uneven the weights are


def test_tempered_draws_have_the_moments_of_the_target():
    x = torch.tensor([-0.5, -0.5])
    adapted = reprior.adapt(SMALL, far(), "rejuvenate", RejuvenateSettings(pool=4_000))
    theta, info = adapted.sample((4_000,), x, seed=0, return_info=True)
    assert info.figures["stages"][0] > 1
    exact = exact_posterior(far(), x, 0.3)
    # Plain weights leave 8 of 4,000 members: an error of 0.35 sd. Tempered, with the duplicates melted: 0.08.
    assert float(((theta.mean(0) - exact.mean) / exact.stddev).abs().max()) < 0.25
    assert torch.allclose(theta.std(0), exact.stddev, rtol=0.1)


# --- a ratio that is not quadratic ------------------------------------------------------------------------------------


def test_laplace_target_against_quadrature():
    # x and theta factorise over the two parameters: the exact marginals are one-dimensional integrals.
    x = torch.tensor([0.4, -0.8])
    adapted = reprior.adapt(SMALL, LAPLACE, "rejuvenate")
    theta, info = adapted.sample_batched((4_000,), torch.stack([x, -x]), seed=0, return_info=True)
    assert [kernel_of(told) for told in info.told] == ["plug_in", "plug_in"]
    grid = torch.linspace(-6, 6, 12_001, dtype=torch.float64)
    for k, data in enumerate((x, -x)):
        for j in range(2):
            log = -(grid - float(LAPLACE.mean[j])).abs() / 0.5 - (grid - float(data[j])) ** 2 / 0.6
            weight = torch.softmax(log, 0)
            mean = float((weight * grid).sum())
            sd = float((weight * (grid - mean) ** 2).sum().sqrt())
            # ESS .5 to .8 of 10,000 and 4,000 draws: standard error 0.02 sd; the plug-in value smooths the kink a little.
            assert float(theta[:, k, j].mean()) == pytest.approx(mean, abs=0.1 * sd)
            assert float(theta[:, k, j].std()) == pytest.approx(sd, rel=0.08)
    assert len(info.figures["s0"]) == 2


def test_no_copies_are_left():
    adapted = reprior.adapt(SMALL, far(), "rejuvenate", RejuvenateSettings(pool=500))
    theta = adapted.sample((2_000,), torch.tensor([1.0, 1.0]), seed=0)
    assert len(theta.unique(dim=0)) == 2_000


# --- curvature and the noise level -----------------------------------------------------------------------------------


def test_curvature_of_a_quadratic_is_its_largest_eigenvalue():
    target = MultivariateNormal(torch.zeros(2), torch.diag(torch.tensor([0.2, 2.0])))
    change = make_change(PRIOR, target, SCALE, 0)
    quadratic = change.quadratic
    assert curvature(change, quadratic, torch.zeros(5, 2)) == pytest.approx(4.0, rel=1e-3)
    loose = replace(quadratic, misfit=1.0)  # by autograd instead
    assert curvature(change, loose, torch.randn(64, 2, generator=generator())) == pytest.approx(4.0, rel=1e-3)


def test_curvature_of_other_ratios():
    # Against p = N(0, 1), whose log has curvature -1. Student t: (log t)'' = -(v+1)(v - t^2)/(v + t^2)^2, -(v+1)/v at 0.
    student = make_change(PRIOR, Independent(StudentT(3.0, torch.zeros(2), torch.ones(2)), 1), SCALE, 0)
    assert curvature(student, student.quadratic, torch.zeros(4, 2)) == pytest.approx(1 / 3, rel=1e-3)
    # Over a flat p a Laplace is piecewise linear: no curvature.
    flat, scale = Independent(Uniform(torch.full((2,), -3.0), torch.full((2,), 3.0)), 1), SCALE
    linear = make_change(flat, lambda theta: theta.sum(-1).abs(), scale, 0)
    assert curvature(linear, linear.quadratic, torch.randn(4, 2, generator=generator())) == 0.0


def test_noise_level_follows_the_need_and_the_limits():
    problem = problem_of(SMALL, LAPLACE)
    method = Rejuvenate(problem)
    base, some = SMALL.condition(torch.zeros(1, 2)), torch.randn(64, 2, generator=generator())
    spread = torch.full((2,), 0.4)
    limit = math.sqrt(0.5 / curvature(method.change, method.quadratic, some))
    levels = [method._level(base, "plug_in", some, spread, members, 1.0, 0.0) for members in (10_000.0, 100.0, 3.0)]
    assert levels == sorted(levels)  # fewer members need more noise
    assert levels[0] == pytest.approx(min(0.8 * 10_000 ** (-1 / 6), limit))
    assert max(levels) <= min(limit, 0.8)
    fixed = Rejuvenate(problem, RejuvenateSettings(s0=0.25))
    assert fixed._level(base, "plug_in", some, spread, 3.0, 1.0, 0.0) == 0.25


def test_transport_starts_high_enough_to_forget_the_pool():
    shift = MultivariateNormal(torch.full((2,), 0.5), 0.5 * torch.eye(2))
    method = Rejuvenate(problem_of(SMALL, shift))
    base, some, spread = SMALL.condition(torch.zeros(1, 2)), torch.zeros(64, 2), torch.tensor([0.4, 0.05])
    for error in (torch.tensor([0.1, 0.001]), torch.tensor([0.001, 0.02])):
        s0 = method._forget(spread, error)
        # A process that starts at s0 keeps w / sqrt(w^2 + s0^2) of an error of the mean; none keeps more than 0.03 w.
        assert float((error / (spread**2 + s0**2).sqrt()).max()) == pytest.approx(0.03)
        assert method._level(base, "transport", some, spread, 1e4, 1.0, s0) == pytest.approx(s0)
    assert method._forget(spread, 0.02 * spread) == 0.0


def test_standard_error_of_a_weighted_mean():
    # Weights of a shift by 1.5 sd: the weighted mean of many pools scatters by what one pool says.
    pools = torch.randn(300, 2_000, 1, generator=generator())
    log_w = 1.5 * pools[..., 0]
    means = torch.stack([(torch.softmax(w, 0) @ pool) for pool, w in zip(pools, log_w, strict=True)])
    told = torch.stack([mean_error(pool, w) for pool, w in zip(pools, log_w, strict=True)])
    assert float(told.square().mean().sqrt()) == pytest.approx(float(means.std()), rel=0.12)  # 300 pools: 4 %, tails


def test_error_of_a_tempered_pool_does_not_stay():
    # A pool of 1,000 whose weights leave about ten members; the same draws from p, so one mean error for all of them.
    x, settings = torch.tensor([-0.5, -0.5]), RejuvenateSettings(pool=1_000)
    exact = exact_posterior(far(), x, 0.3)
    errors = {}
    for s0 in (0.0, 0.8):
        adapted = reprior.adapt(SMALL, far(), "rejuvenate", replace(settings, s0=s0))
        draws = [adapted.sample((4_000,), x, seed=seed) for seed in range(6)]
        off = torch.stack([(theta.mean(0) - exact.mean) / exact.stddev for theta in draws])
        errors[s0] = float(off.square().mean().sqrt())
    assert errors[0.0] < 0.06  # the standard error of 4,000 draws is 0.016
    assert errors[0.0] < errors[0.8] / 2


def test_noise_level_is_lowered_where_transport_does_not_reach():
    wide = MultivariateNormal(torch.zeros(2), 3 * torch.eye(2))
    x = torch.tensor([0.4, 0.2])
    adapted = reprior.adapt(SMALL, wide, "rejuvenate", RejuvenateSettings(s0=5.0))
    theta, info = adapted.sample((4_000,), x, seed=0, return_info=True)
    assert kernel_of(info.told[0]) == "transport"
    assert info.figures["s0"][0] == pytest.approx(largest_noise(adapted.change.quadratic))
    exact = exact_posterior(wide, x, 0.3)
    assert float(((theta.mean(0) - exact.mean) / exact.stddev).abs().max()) < 0.08
    assert torch.allclose(theta.std(0), exact.stddev, rtol=0.05)


def test_spread_is_weighted():
    pool = torch.tensor([[0.0], [1.0], [100.0]])
    log_w = torch.tensor([0.0, math.log(3.0), -torch.inf])
    assert float(spread_of(pool, log_w)) == pytest.approx(math.sqrt(0.25 * 0.75), rel=1e-5)


# --- what guides below, and refusals ---------------------------------------------------------------------------------


def test_which_kernel_is_chosen():
    target = MultivariateNormal(torch.zeros(2), torch.diag(torch.tensor([0.2, 0.6])))
    scalar, _ = gaussian_posterior(dim=2, c=0.3, noise="scalar")
    diagonal, coarse, laplace = problem_of(SMALL, target), problem_of(scalar, target), problem_of(SMALL, LAPLACE)
    assert Rejuvenate(diagonal).kernel == "transport"
    assert Rejuvenate(coarse).kernel == "plug_in"
    assert Rejuvenate(laplace).kernel == "plug_in"
    with pytest.raises(RefusedError, match="cannot guide by transport: log q/p is not quadratic"):
        Rejuvenate(laplace, RejuvenateSettings(kernel="transport"))
    with pytest.raises(RefusedError, match="cannot guide by transport: this change needs a base trained with"):
        Rejuvenate(coarse, RejuvenateSettings(kernel="transport"))
    with pytest.raises(InputError, match="kernel='learned' needs a learned ratio"):
        Rejuvenate(laplace, RejuvenateSettings(kernel="learned"))
    blind = problem_of(SMALL, lambda theta: LAPLACE.log_prob(theta).detach())
    assert Rejuvenate(blind).kernel == "moves"
    with pytest.raises(RefusedError, match="gradient of log r, and this one has none; use kernel='moves'"):
        Rejuvenate(blind, RejuvenateSettings(kernel="plug_in"))


def test_a_learned_ratio_is_used_at_the_last_step():
    problem = problem_of(SMALL, LAPLACE)
    method = Rejuvenate(problem, RejuvenateSettings(kernel="learned", pool=300), PlugIn(problem))
    drawn = method.draw(SMALL.condition(torch.zeros(1, 2)), 50, Sampler(), generator())
    assert kernel_of(drawn.told[0]) == "learned"
    assert bool(torch.isfinite(drawn.theta).all())


def test_bounded_target_needs_one_pool_and_is_uniform_times_the_posterior(monkeypatch):
    pools = []
    made = rejuvenate.chunked
    monkeypatch.setattr(rejuvenate, "chunked", lambda *a: pools.append(1) or made(*a))
    low, high = torch.tensor([-0.2, -3.0]), torch.tensor([1.5, 3.0])
    x = torch.tensor([0.2, 0.1])
    adapted = reprior.adapt(SMALL, Independent(Uniform(low, high), 1), "rejuvenate", accept_outside=True)
    theta = adapted.sample((N,), x, seed=0)
    assert len(pools) == 1  # no draw ends outside, so none is drawn again
    assert bool(((theta > low) & (theta < high)).all())
    # r = 1/p in the box: the likelihood N(x, .3 I), truncated.
    sd = 0.3**0.5
    edges = Normal(0.0, 1.0).cdf((torch.stack([low, high]) - x) / sd)
    for i in range(2):
        u = (Normal(0.0, 1.0).cdf((theta[:, i] - x[i]) / sd) - edges[0, i]) / (edges[1, i] - edges[0, i])
        # Kolmogorov-Smirnov at 1e-4 is 2.2 / sqrt(n) for independent draws; these rest on 10,000 of relative ESS 0.3.
        assert float((u.sort().values - (torch.arange(N) + 0.5) / N).abs().max()) < 2.2 / N**0.5 + 0.01


def marginal(log_q, x: float, c: float = 0.3) -> tuple[float, float, float]:
    """Mean, standard deviation and P(theta < 0.1) of q(theta | x) in one dimension, x = theta + N(0, c), by quadrature."""
    grid = torch.linspace(-5, 5, 200_001, dtype=torch.float64)
    weight = torch.softmax(log_q(grid) - (x - grid) ** 2 / (2 * c), 0)
    mean = float((weight * grid).sum())
    return mean, float((weight * (grid - mean) ** 2).sum().sqrt()), float(weight[grid < 0.1].sum())


EDGES = {
    "half cauchy": HalfCauchy(torch.tensor(0.5)),
    "exponential": Exponential(torch.tensor(2.0)),
    "gamma": Gamma(torch.tensor(1.2), torch.tensor(1.0)),
    "steep gamma": Gamma(torch.tensor(3.0), torch.tensor(3.0)),
    "log-normal": LogNormal(torch.tensor(-0.5), torch.tensor(0.5)),
}


@pytest.mark.parametrize("name", EDGES)
def test_the_edge_of_a_positive_target_is_not_emptied(name):
    # Over an unbounded p: draws that noise carries over the edge must come back to it.
    one, x = EDGES[name], torch.tensor([-0.3, 0.2])
    theta, info = reprior.adapt(SMALL, [one, one], "rejuvenate").sample((N,), x, seed=0, return_info=True)
    assert kernel_of(info.told[0]) in ("moves", "transport")
    assert info.figures["accepted"][0] > 0.3
    assert bool((theta > 0).all())
    for i in range(2):
        mean, sd, low = marginal(lambda g: torch.where(g > 0, one.log_prob(g.clamp(min=1e-9)), -torch.inf), float(x[i]))
        # 10,000 draws of relative ESS 0.06 or more, and copies: at least 500 effective, 4 standard errors.
        assert float(theta[:, i].mean()) == pytest.approx(mean, abs=4 * sd / 500**0.5)
        assert float(theta[:, i].std()) == pytest.approx(sd, rel=4 / 1_000**0.5)
        assert float((theta[:, i] < 0.1).float().mean()) == pytest.approx(low, abs=4 * (low * (1 - low) / 500) ** 0.5)


@pytest.mark.parametrize("factor", [4.0, 50.0])
def test_a_step_in_the_target_is_kept(factor):
    # q = p times a factor where theta_1 > 0: the slope of log r says nothing of it.
    def log_q(theta):
        return PRIOR.log_prob(theta) + torch.where(theta[..., 0] > 0, math.log(factor), 0.0)

    x = torch.tensor([-0.3, 0.5])
    adapted = reprior.adapt(SMALL, log_q)
    assert adapted.method.name == "rejuvenate"
    theta, info = adapted.sample((N,), x, seed=0, return_info=True)
    assert kernel_of(info.told[0]) == "moves"
    v = 0.3 / 1.3
    above = 1 - float(Normal(-0.3 / 1.3, v**0.5).cdf(torch.tensor(0.0)))
    share = factor * above / (factor * above + 1 - above)
    # Relative ESS 0.4 of 10,000 draws, or more: 4 standard errors of 2,000.
    assert float((theta[:, 0] > 0).float().mean()) == pytest.approx(share, abs=4 * (share * (1 - share) / 2_000) ** 0.5)
    assert float(theta[:, 1].mean()) == pytest.approx(0.5 / 1.3, abs=4 * (v / 2_000) ** 0.5)


def test_an_observation_that_the_target_excludes_fails_alone():
    method = Rejuvenate(problem_of(SMALL, Uniform(torch.zeros(2), torch.ones(2))), RejuvenateSettings(pool=300))
    drawn = method.draw(SMALL.condition(torch.tensor([[-9.0, -9.0], [0.5, 0.5]])), 10, Sampler(), generator())
    assert isinstance(drawn, Drawn)
    assert list(drawn.failed) == [0]
    assert "no base sample has mass under the target prior" in drawn.failed[0]
    assert drawn.told[0] == "not drawn"
    assert math.isnan(drawn.figures["s0"][0])
    assert torch.isfinite(drawn.theta).all(-1).all(0).tolist() == [False, True]


@pytest.mark.parametrize(
    "bad", [{"pool": 99}, {"s0": -0.1}, {"steps": 1}, {"ess": 0.0}, {"ess": 1.0}, {"stages": 0}, {"sweeps": 0}]
)
def test_bad_settings_are_named(bad):
    with pytest.raises(InputError, match=r"rejuvenate needs pool >= 100.*got \{'pool'"):
        RejuvenateSettings(**bad)


def test_an_unknown_kernel_is_named():
    with pytest.raises(
        InputError,
        match="kernel='magic' is unknown; allowed: choose, transport, plug_in, moves, learned",
    ):
        RejuvenateSettings(kernel="magic")  # pyright: ignore[reportArgumentType]


# --- log r that is far more curved in one part than in another -------------------------------------------------------

ONE, _ = gaussian_posterior(dim=1, c=0.3)


def share_within(posterior_log: torch.Tensor, grid: torch.Tensor, inside: torch.Tensor) -> float:
    return float(torch.softmax(posterior_log, 0)[inside].sum())


def test_a_spike_on_a_slab_keeps_its_mass():
    # One step of resampling, no bounds, a gradient: the plug-in value of a noise that suits the slab would empty the spike.
    def log_q(theta: torch.Tensor) -> torch.Tensor:
        spike = -0.5 * (theta[:, 0] / 0.02) ** 2 - math.log(0.02) + math.log(0.2)
        return torch.logaddexp(spike, -0.5 * theta[:, 0] ** 2 + math.log(0.8))

    adapted = reprior.adapt(ONE, log_q)
    theta, info = adapted.sample((10_000,), torch.tensor([0.3]), seed=0, return_info=True)
    grid = torch.linspace(-6, 6, 60_001, dtype=torch.float64)
    exact = share_within(log_q(grid[:, None]) - (grid - 0.3) ** 2 / 0.6, grid, grid.abs() < 0.05)
    assert kernel_of(info.told[0]) == "moves"
    # ESS .35 of a pool of 10,000: standard error .008, and .005 of the draws.
    assert float((theta.abs() < 0.05).float().mean()) == pytest.approx(exact, abs=0.03)


@pytest.mark.parametrize(
    ("df", "dim", "scale", "centre", "c", "at", "far_out"),
    [(2.0, 1, 0.05, 1.5, 1.0, 0.0, 0.1), (1.0, 2, 0.03, 1.0, 0.3, 0.5, 0.5)],
    ids=["core and tail", "tail that no Gaussian part reaches"],
)
def test_heavy_tails_of_a_narrow_target_are_kept(df, dim, scale, centre, c, at, far_out):
    posterior, _ = gaussian_posterior(dim=dim, c=c)
    target = Independent(StudentT(df, torch.full((dim,), centre), torch.full((dim,), scale)), 1)
    x = torch.full((dim,), at)
    adapted = reprior.adapt(posterior, target)
    theta = torch.cat([adapted.sample((10_000,), x, seed=seed) for seed in range(3)])
    grid = torch.linspace(-8, 8, 160_001, dtype=torch.float64)
    log = StudentT(df, centre, scale).log_prob(grid) - (grid - at) ** 2 / (2 * c)
    exact = share_within(log, grid, (grid - centre).abs() > far_out)
    drawn = float(((theta - centre).abs() > far_out).float().mean())
    # Three pools of 10,000 with a tenth effective in the last step; the tails were a half and two thirds short before.
    assert drawn == pytest.approx(exact, rel=0.15)


def test_moves_inside_bounds_keep_mean_and_width():
    target = Uniform(torch.tensor([1.5]), torch.tensor([5.0]))
    posterior, _ = gaussian_posterior(dim=1, c=1.0)
    adapted = reprior.adapt(posterior, Independent(target, 1), "rejuvenate")
    theta = torch.cat([adapted.sample((10_000,), torch.tensor([-0.5]), seed=seed) for seed in range(4)])
    grid = torch.linspace(1.5, 5, 20_001, dtype=torch.float64)
    weight = torch.softmax(-((grid + 0.5) ** 2) / 2, 0)  # the likelihood, cut
    mean = float(weight @ grid)
    sd = float((weight @ (grid - mean) ** 2).sqrt())
    # ESS .004 of 10,000 in tempered steps: the mean of four runs scatters by .01 sd; it was .045 low, and the sd 4 %.
    assert float(theta.mean()) == pytest.approx(mean, abs=0.03 * sd)
    assert float(theta.std()) == pytest.approx(sd, rel=0.025)


@pytest.mark.parametrize("s0", [1.0, 5.0, 20.0])
def test_a_high_start_takes_more_steps(s0):
    target = MultivariateNormal(torch.full((2,), 0.5), 0.5 * torch.eye(2))
    x = torch.tensor([0.4, 0.2])
    adapted = reprior.adapt(SMALL, target, "rejuvenate", RejuvenateSettings(s0=s0))
    theta = adapted.sample((20_000,), x, seed=0)
    # 20,000 draws: standard error of sd .5 %; 14 steps from 20 down made it 3 % too wide.
    assert torch.allclose(theta.std(0), exact_posterior(target, x, 0.3).stddev, rtol=0.02)
