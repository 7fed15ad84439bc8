"""Transport with the exact denoiser: the closed form for every Gaussian change, and a reason where it cannot."""

from __future__ import annotations

import math

import pytest
import torch
from exact import GaussianBase, exact_posterior, gaussian_posterior, problem_of
from torch import Tensor
from torch.distributions import (
    Categorical,
    Independent,
    Laplace,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Uniform,
)

import reprior
from reprior.diffusion.sampler import PAPER_SAMPLER, Sampler, initial_state
from reprior.errors import InputError, RefusedError
from reprior.methods import Method, Problem, TransportSettings, find
from reprior.methods.rejuvenate import Rejuvenate
from reprior.methods.transport import MARGIN, START, Transport, Transported, largest_noise, why_not
from reprior.posterior import Posterior, Scales
from reprior.quadratic import Quadratic
from reprior.simulations import Simulations
from reprior.standardizer import Standardizer
from reprior.target import make_change

C = 0.3
POSTERIOR, PRIOR = gaussian_posterior(dim=3, c=C)
SCALE = POSTERIOR.scales.theta
X = torch.tensor([[0.4, 0.2, -0.6], [-1.0, 0.8, 0.1]])
EYE = torch.eye(3)
CHANGES = {
    "scalar": MultivariateNormal(torch.zeros(3), 0.4 * EYE),
    "scalar and shift": MultivariateNormal(torch.tensor([0.5, -0.4, 1.0]), 0.4 * EYE),
    "shift": MultivariateNormal(torch.tensor([0.5, -0.4, 0.2]), EYE),
    "diagonal": MultivariateNormal(torch.tensor([0.5, 0.0, 0.0]), torch.diag(torch.tensor([0.2, 0.5, 1.0]))),
    "full": MultivariateNormal(
        torch.tensor([0.5, 0.0, -0.3]), torch.tensor([[0.5, 0.2, 0.0], [0.2, 0.4, -0.1], [0.0, -0.1, 0.3]])
    ),
    "wider": MultivariateNormal(torch.tensor([0.2, 0.0, 0.0]), torch.diag(torch.tensor([1.05, 0.5, 1.0]))),
}
KINDS = {"shift": "scalar", "scalar and shift": "scalar", "wider": "diagonal"}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def exact_mean(target: MultivariateNormal, x: Tensor, z: Tensor, s: float) -> Tensor:
    """E_q[theta_0 | z, x] from the target prior itself: a Gaussian with data x (variance C) and z (variance s^2)."""
    inverse = torch.linalg.inv(target.covariance_matrix.double())
    total = inverse + torch.eye(3).double() * (1 / C + 1 / s**2)
    point = inverse @ target.loc.double() + x.double() / C + z.double() / s**2
    return torch.linalg.solve(total, point.unsqueeze(-1))[..., 0].float()


# --- the denoiser ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CHANGES))
@pytest.mark.parametrize("s", [0.02, 0.3, 1.5])
def test_guided_mean_is_the_closed_form(name, s):
    change = make_change(PRIOR, CHANGES[name], SCALE, 0)
    guided = Transported(POSTERIOR.condition(X), change.quadratic)
    z = (1 + s) * torch.randn(30, 2, 3, generator=generator())
    want = exact_mean(CHANGES[name], X, z, s)
    assert torch.allclose(guided.mean(z, torch.tensor(s)), want, atol=1e-4)
    rows = torch.full((30, 2, 1), s)
    assert torch.allclose(guided.mean(z, rows), want, atol=1e-4)
    assert torch.allclose(guided.mean_full(z, s**2 * EYE), want, atol=1e-4)


@pytest.mark.parametrize("name", list(CHANGES))
def test_the_noise_it_needs_is_the_shape_of_the_change(name):
    needed = KINDS.get(name, name)
    quadratic = make_change(PRIOR, CHANGES[name], SCALE, 0).quadratic
    assert quadratic.shape == needed
    for noise, rank in (("scalar", 0), ("diagonal", 1), ("full", 2)):
        reason = why_not([quadratic], noise)
        if rank < ("scalar", "diagonal", "full").index(needed):
            assert reason == f"this change needs a base trained with noise={needed!r}; this one has noise={noise!r}"
        else:
            assert reason == ""


def test_noise_stays_as_coarse_as_the_base():
    # A base that takes scalars only must be asked with scalars only.
    coarse, prior = gaussian_posterior(dim=3, c=C, noise="scalar")
    base = coarse.condition(X[:1])
    asked = []
    original = base.mean

    def watch(z: Tensor, s: Tensor) -> Tensor:
        asked.append(s.shape)
        return original(z, s)

    base.mean = watch  # pyright: ignore[reportAttributeAccessIssue]
    quadratic = make_change(prior, CHANGES["scalar and shift"], SCALE, 0).quadratic
    Transported(base, quadratic).mean(torch.zeros(4, 1, 3), torch.tensor(0.5))
    assert asked
    assert all(shape in ((), (1,)) for shape in asked)


def test_entries_behind_the_parameters_keep_their_noise():
    # D = 3 diffused variables of which the first two are parameters: L and h are padded with zeros.
    quadratic = Quadratic(2 * torch.eye(2).double(), torch.tensor([0.5, 0.0]).double(), 0.0, 0.0)
    guided = Transported(POSTERIOR.condition(X), quadratic)
    assert guided.shape == "diagonal"
    padded = Quadratic(
        torch.diag(torch.tensor([2.0, 2.0, 0.0])).double(), torch.tensor([0.5, 0.0, 0.0]).double(), 0.0, 0.0
    )
    z, s = torch.randn(5, 2, 3, generator=generator()), torch.tensor(0.7)
    assert torch.allclose(guided.mean(z, s), Transported(POSTERIOR.condition(X), padded).mean(z, s), atol=1e-6)


# --- samples ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "wider"])
def test_samples_have_the_moments_of_the_target(name):
    adapted = reprior.adapt(POSTERIOR, CHANGES[name], "transport")
    n = 6_000
    theta = adapted.sample((n,), X[0], seed=0, sampler=Sampler(steps=48))
    exact = exact_posterior(CHANGES[name], X[0], C)
    # Standard errors 1/sqrt(n) = 1.3 % of a standard deviation and of a variance; 48 steps add 0.7 % to the variance.
    assert float(((theta.mean(0) - exact.mean) / exact.stddev).abs().max()) < 4 / math.sqrt(n)
    assert float((torch.cov(theta.T) - exact.covariance_matrix).abs().max() / exact.variance.max()) < 0.09


def test_a_process_that_starts_low_starts_with_the_right_width():
    # A shift of three prior standard deviations is transported below noise 1.3 only, 2.8 posterior ones.
    base = POSTERIOR.condition(X[:1])
    target = MultivariateNormal(torch.tensor([1.6, 0.0, 0.0]), EYE)
    moved = Transported(base, make_change(PRIOR, target, SCALE, 0).quadratic)
    assert START * 0.48 < moved.s_max < 3
    n = 40_000
    z = initial_state(moved, n, moved.s_max, generator())[:, 0]
    exact = exact_posterior(target, X[0], C)
    sd = (exact.variance + moved.s_max**2).sqrt()
    assert torch.allclose(z.mean(0), exact.mean, atol=4 * float(sd.max()) / math.sqrt(n) + 0.002)
    # Without the posterior's own variance the width would be 2 % short.
    assert torch.allclose(z.std(0), sd, rtol=0.003 + 4 / math.sqrt(2 * n))
    theta = reprior.adapt(POSTERIOR, target, "transport").sample((6_000,), X[0], seed=1, sampler=PAPER_SAMPLER)
    assert torch.allclose(theta.mean(0), exact.mean, atol=0.06 * float(exact.stddev.max()))


def test_batched_observations_each_get_their_own_posterior():
    adapted = reprior.adapt(POSTERIOR, CHANGES["full"], "transport")
    theta = adapted.sample_batched((3_000,), X, seed=0)
    assert theta.shape == (3_000, 2, 3)
    for k in range(2):
        exact = exact_posterior(CHANGES["full"], X[k], C)
        assert float(((theta[:, k].mean(0) - exact.mean) / exact.stddev).abs().max()) < 4.5 / math.sqrt(3_000)


def mixture() -> MixtureSameFamily:
    means = torch.tensor([[0.9, 0.9, 0.9], [-0.8, -0.8, -0.8]])
    covs = torch.stack([0.2 * EYE, torch.diag(torch.tensor([0.1, 0.3, 0.2]))])
    return MixtureSameFamily(Categorical(torch.tensor([0.3, 0.7])), MultivariateNormal(means, covs))


def test_mixture_has_the_right_weights_and_moments():
    target = mixture()
    adapted = reprior.adapt(POSTERIOR, target, "transport")
    assert len(adapted.method.quadratics) == 2  # pyright: ignore[reportAttributeAccessIssue]
    theta, info = adapted.sample_batched((4_000,), X, seed=0, return_info=True)
    law = target.component_distribution
    assert isinstance(law, MultivariateNormal)
    for k in range(2):
        evidence = MultivariateNormal(law.loc, law.covariance_matrix + C * EYE).log_prob(X[k])
        shares = torch.softmax(torch.tensor([0.3, 0.7]).log() + evidence, 0)
        # Shares come from 4,000 base draws: relative error sqrt((1/ESS - 1)/4000), some 3 %.
        found = [info.figures[f"weight of component {j}"][k] for j in (1, 2)]
        assert found == pytest.approx(shares.tolist(), abs=0.03)
        each = [exact_posterior(MultivariateNormal(law.loc[j], law.covariance_matrix[j]), X[k], C) for j in range(2)]
        mean = sum(shares[j] * each[j].mean for j in range(2))
        second = sum(shares[j] * (each[j].variance + each[j].mean ** 2) for j in range(2))
        assert isinstance(mean, Tensor)
        assert isinstance(second, Tensor)
        sd = (second - mean**2).sqrt()
        # The error of the share moves the mean by at most 0.03 times the distance of the means, 0.9.
        assert torch.allclose(theta[:, k].mean(0), mean, atol=4 * float(sd.max()) / math.sqrt(4_000) + 0.027)
        assert torch.allclose(theta[:, k].std(0), sd, rtol=0.06)


@pytest.mark.parametrize("seed", range(4))
def test_a_component_too_narrow_for_the_base_draws_has_its_weight(seed):
    # Spike and slab: hardly one of 4,000 base draws lies in the spike, which has most of the posterior.
    base, _ = gaussian_posterior(dim=4, c=0.3, noise="diagonal")
    means = torch.stack([torch.zeros(4), torch.full((4,), 0.3)])
    sds = torch.tensor([[0.8], [0.03]]).expand(2, 4)
    target = MixtureSameFamily(Categorical(torch.ones(2)), Independent(Normal(means, sds), 1))
    x = torch.full((4,), 0.4)
    evidence = Independent(Normal(means, torch.sqrt(sds**2 + 0.3)), 1).log_prob(x)
    exact = torch.softmax(evidence, 0)
    assert float(exact[1]) > 0.9
    method = Transport(problem_of(base, target))
    drawn = method.draw(base.condition(x.unsqueeze(0)), 10, Sampler(), generator(seed))
    # Each of some five steps has the relative error sqrt((1/0.2 - 1)/4000), 3 %: 7 % of the odds in all; 4 of these.
    odds = torch.logit(torch.tensor(drawn.figures["weight of component 2"][0])) - torch.logit(exact[1])
    assert abs(float(odds)) < 0.28


def test_truncated_target_is_transported_and_cut():
    # q uniform on a box over a Gaussian p: log r is quadratic inside, draws outside are drawn again.
    near, _ = gaussian_posterior(dim=1, c=0.05)
    box = Uniform(torch.tensor([0.3]), torch.tensor([0.9]))
    theta, info = reprior.adapt(near, box, "transport").sample((6_000,), torch.tensor([0.5]), seed=0, return_info=True)
    cut = Normal(0.5, math.sqrt(0.05))
    inside = float(cut.cdf(torch.tensor(0.9)) - cut.cdf(torch.tensor(0.3)))
    assert info.rejected == pytest.approx(1 - inside, abs=0.02)
    grid = torch.linspace(0.3, 0.9, 2_001)
    density = cut.log_prob(grid).exp()
    mean = float((grid * density).sum() / density.sum())
    assert float(theta.mean()) == pytest.approx(mean, abs=4 * 0.15 / math.sqrt(6_000))
    assert 0.3 <= float(theta.min()) < 0.305
    assert 0.895 < float(theta.max()) <= 0.9


# --- what it cannot do -----------------------------------------------------------------------------------------------


def test_largest_noise():
    def at(L: Tensor, h: Tensor) -> float:
        return largest_noise(Quadratic(L.double(), h.double(), 0.0, 0.0))

    assert at(EYE, torch.zeros(3)) == pytest.approx(100.0)  # narrowing: every noise
    wide = torch.diag(torch.tensor([-0.25, 1.0, 0.0]))  # S^-1 + L is positive below noise 2
    assert MARGIN * 2 * 0.94 < at(wide, torch.zeros(3)) <= MARGIN * 2
    # A pure shift h moves z' by s^2 h, which must stay within 4 sqrt(1 + s^2).
    s = at(torch.zeros(3, 3), torch.tensor([3.0, 0.0, 0.0]))
    assert 3 * s**2 <= 4 * math.sqrt(1 + s**2)
    assert 3 * (1.07 * s) ** 2 > 4 * math.sqrt(1 + (1.07 * s) ** 2)
    assert at(torch.zeros(3, 3), torch.full((3,), 1e9)) == 1e-3


def test_widening_is_refused_with_the_reason():
    wide = MultivariateNormal(torch.zeros(3), torch.diag(torch.tensor([3.0, 1.0, 1.0])))
    adapted = reprior.adapt(POSTERIOR, wide, "transport")
    with pytest.raises(InputError, match=r"q is wider than p \(by curvature -0\.667\).*Use method='rejuvenate'"):
        adapted.sample((10,), X[0])


def test_a_predictive_wider_than_the_start_is_refused():
    two, _ = gaussian_posterior(dim=2, c=C)
    method = Transport(problem_of(two, MultivariateNormal(torch.zeros(2), torch.diag(torch.tensor([3.0, 1.0])))))
    narrow = GaussianBase(0.03 * torch.eye(2), 9.0)
    assert method.refused(narrow.condition(torch.zeros(1, 2)), generator()) == {}
    # The same posterior, and behind it an entry of x with standard deviation 2.1; transport reaches noise 0.98.
    both = GaussianBase(torch.diag(torch.tensor([0.03, 0.03, 9.0])), 9.0)
    assert "the predictive of x is 2." in method.refused(both.condition(torch.zeros(1, 3)), generator())[0]


def test_a_fallback_draws_what_transport_cannot():
    wide = MultivariateNormal(torch.zeros(3), torch.diag(torch.tensor([3.0, 1.0, 1.0])))
    problem = problem_of(POSTERIOR, wide)
    alone = Transport(problem)
    assert alone.config() == {"settings": {"probes": 200, "component_draws": 4_000}, "fallback": None}
    method = Transport(problem, fallback=Rejuvenate(problem))
    assert method.config()["fallback"] == {"name": "rejuvenate", "config": Rejuvenate(problem).config()}
    assert set(method.refused(POSTERIOR.condition(X), generator())) == {0, 1}
    drawn = method.draw(POSTERIOR.condition(X), 3_000, Sampler(), generator())
    theta = drawn.theta
    assert all("drawn by rejuvenate, as transport cannot make this change" in told for told in drawn.told)
    assert drawn.failed == {}
    lost = alone.draw(POSTERIOR.condition(X), 5, Sampler(), generator())
    assert lost.failed == alone.refused(POSTERIOR.condition(X), generator())
    assert bool(lost.theta.isnan().all())
    for k in range(2):
        exact = exact_posterior(wide, X[k], C)
        # Rejuvenation from 10,000 draws of ESS .5 and more: standard error 0.02 and below.
        assert float(((theta[:, k].mean(0) - exact.mean) / exact.stddev).abs().max()) < 0.1


def test_shift_beyond_the_trained_range_is_refused_with_the_reason():
    far = MultivariateNormal(torch.full((3,), 8.0), EYE)
    with pytest.raises(InputError, match="the shift is so large that the transported point stays in the trained range"):
        reprior.adapt(POSTERIOR, far, "transport").sample((10,), X[0])


@pytest.mark.parametrize(
    ("noise", "name", "needed"),
    [("scalar", "diagonal", "diagonal"), ("scalar", "full", "full"), ("diagonal", "full", "full")],
)
def test_base_with_too_coarse_noise_is_refused(noise, name, needed):
    coarse, _ = gaussian_posterior(dim=3, c=C, noise=noise)
    with pytest.raises(InputError, match=f"needs a base trained with noise='{needed}'; this one has noise='{noise}'"):
        reprior.adapt(coarse, CHANGES[name], "transport")


def test_other_ratios_are_refused():
    problem = problem_of(POSTERIOR, Independent(Laplace(torch.zeros(3), torch.ones(3)), 1))
    assert problem.change.quadratics is None
    with pytest.raises(RefusedError, match="log q/p is not quadratic"):
        Transport(problem)


def test_mixture_has_no_single_denoiser():
    with pytest.raises(InputError, match="drawn component by component"):
        Transport(problem_of(POSTERIOR, mixture())).guide(POSTERIOR.condition(X), generator())


class Partly(Transport):
    """Transport that refuses the first observation."""

    def refused(self, denoiser, generator):
        return {0: "asked to. And more"} if denoiser.observations > 1 else {}


class Hopeless(Method):
    """A fallback that draws nothing."""

    name = "hopeless"

    def draw(self, denoiser, n, sampler, generator):
        nothing = torch.full((n, denoiser.observations, denoiser.dim), torch.nan)
        return reprior.methods.Drawn(nothing, failed=dict.fromkeys(range(denoiser.observations), "no way"))


@pytest.mark.parametrize("fallback", [None, Hopeless, Rejuvenate])
def test_what_is_refused_costs_no_other_observation(fallback):
    problem = problem_of(POSTERIOR, CHANGES["full"])
    method = Partly(problem, fallback=fallback and fallback(problem))
    drawn = method.draw(POSTERIOR.condition(X), 3_000, Sampler(), generator())
    assert drawn.failed == {None: {0: "asked to. And more"}, Hopeless: {0: "no way"}, Rejuvenate: {}}[fallback]
    first = {
        None: "not drawn",
        Hopeless: "drawn by hopeless, as asked to",
        Rejuvenate: "drawn by rejuvenate, as asked to",
    }
    assert drawn.told[0] == first[fallback]
    assert "which is exact" in drawn.told[1]
    for k in range(2):
        exact = exact_posterior(CHANGES["full"], X[k], C)
        if k in drawn.failed:
            assert bool(drawn.theta[:, k].isnan().all())
        else:
            assert float(((drawn.theta[:, k].mean(0) - exact.mean) / exact.stddev).abs().max()) < 0.1


def test_settings_say_how_many_draws_tell_a_weight():
    few = Transport(problem_of(POSTERIOR, mixture()), TransportSettings(component_draws=150))
    assert few.lighter(100).settings.component_draws == 100
    for bad in ({"probes": 9}, {"component_draws": 99}):
        with pytest.raises(InputError, match="transport needs probes >= 10 and component_draws >= 100"):
            TransportSettings(**bad)


def test_a_fallback_is_rebuilt_with_its_settings():
    problem = problem_of(POSTERIOR, CHANGES["full"])
    sir = find("sir")(problem, reprior.methods.SIRSettings(pool=77))
    method = Transport(problem, TransportSettings(probes=33), sir)
    again = Transport.rebuild(Problem(problem.posterior, problem.change), method.config(), method.tensors())
    assert again.config() == method.config()
    assert isinstance(again, Transport)
    assert again.fallback is not None
    assert again.fallback.settings.pool == 77


@pytest.mark.parametrize("dim", [4, 10])
def test_largest_noise_of_a_shift_does_not_hang_on_rounding(dim):
    none = torch.zeros(dim, dim, dtype=torch.float64)
    h = torch.full((dim,), 0.3, dtype=torch.float64)
    exact = largest_noise(Quadratic(none, h, 0.0, 0.0))
    for seed in range(3):
        noise = 1e-8 * torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert largest_noise(Quadratic(noise + noise.T, h, 0.0, 0.0)) == pytest.approx(exact)
    # s^2 h <= 4 sqrt(1 + s^2), on the grid of levels
    assert 0.3 * exact**2 <= 4 * math.sqrt(1 + exact**2) < 0.3 * (1.07 * exact) ** 2


def test_where_bounds_cut_nearly_all_away_the_fallback_draws():
    # Uniform over Uniform: one cut for all x, hardly felt at 2 and nearly everything at 3.9.
    prior = Independent(Uniform(torch.zeros(1), torch.full((1,), 4.0)), 1)
    theta = reprior.priors.sample(prior, 2_000, seed=0)
    base, unit = GaussianBase(100.0 * torch.eye(1), 0.25), Standardizer(torch.zeros(1), torch.ones(1))
    posterior = Posterior(base, Scales(unit, unit), prior, Simulations(theta, theta + 0.5, prior, ("a",)), ("a",))
    adapted = reprior.adapt(posterior, Uniform(torch.ones(1), torch.full((1,), 2.5)))
    assert adapted.method.name == "transport"
    for x, told in (
        (2.0, "which is exact for this change"),
        (3.9, "drawn by rejuvenate, as q's bounds cut most of its posterior away"),
    ):
        draws, info = adapted.sample((4_000,), torch.tensor([x]), seed=0, return_info=True)
        assert told in info.told[0]
        grid = torch.linspace(1, 2.5, 5_001, dtype=torch.float64)
        weight = torch.softmax(-((grid - x / 1.0025) ** 2) / 0.5, 0)
        mean = float(weight @ grid)
        sd = float((weight @ (grid - mean) ** 2).sqrt())
        assert float(draws.mean()) == pytest.approx(mean, abs=0.1 * sd)
        assert float(draws.std()) == pytest.approx(sd, rel=0.08)
