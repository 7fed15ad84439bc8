"""The Simformer base: attention, masks, missing data, patches, and a linear-Gaussian series in closed form."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from reprior.diffusion.sampler import Sampler, run
from reprior.errors import InputError
from reprior.networks.gaussian_guess import GaussianGuess
from reprior.networks.masks import MaskMix, draw_states
from reprior.networks.noise import NoiseLaw
from reprior.networks.simformer import PAPER_SIMFORMER, SimformerBase, SimformerSettings
from reprior.networks.tokens import ABSENT, DIFFUSED, GIVEN, Grid, PaperTokens

SMALL = SimformerSettings(noise="scalar", layers=3, width=24, heads=2, head_size=8, widening=2, theta_patch=1, patch=1)
NAN = float("nan")


def make(dim: int = 2, x_dim: int = 5, settings: SimformerSettings = SMALL, seed: int = 0) -> SimformerBase:
    """A base whose zero-initialised layers are drawn at random, so that every path matters."""
    torch.manual_seed(seed)
    base = SimformerBase(dim, x_dim, settings)
    if settings.output == "mean":
        base.prepare(normal(40, dim, seed=seed + 90), normal(40, x_dim, seed=seed + 91))
    for p in base.parameters():
        if p.abs().max() == 0:
            p.data.normal_(0, 0.3)
    return base.requires_grad_(False)


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# --- attention -------------------------------------------------------------------------------------------------------


def naive(base: SimformerBase, values: Tensor, states: Tensor, off: Tensor, s: Tensor) -> Tensor:
    """F for one state per observation by one transformer over [given, diffused] tokens with attention masks."""
    bound = base.bind(values, states)
    layout = bound.layout
    slots = base.grid.to_slots(values.nan_to_num()) * (layout.states == GIVEN)
    slot_states = torch.where(base.grid.to_slots(torch.isnan(values)), ABSENT, layout.states)
    order = torch.cat([layout.given, layout.diffused])
    t_c = len(layout.given)
    fixed = base.tokens.fixed(layout.given, slot_states[:, layout.given], None)
    h_given = base.tokens.embed(layout.given, slots[:, layout.given], None, fixed)
    off, width = off.unsqueeze(1), bound.guess.width
    _, white, _ = bound.guess.denoise(off, s.unsqueeze(1))
    own = slots[:, layout.diffused] + layout.spread(off / (width**2 + s.unsqueeze(1) ** 2).sqrt())[:, 0]
    guess = layout.spread(white)[:, 0]
    h = torch.cat([h_given, base.tokens.embed(layout.diffused, own, guess, bound.fixed[:, 0])], 1)
    shift = base.tokens.shift(base._noise_features(s.unsqueeze(1), bound))[:, 0]  # (K, T_u, layers + 1, w)
    all_shift = torch.zeros(len(h), len(order), *shift.shape[2:])
    all_shift[:, t_c:] = shift
    seen = torch.ones(len(h), len(order), len(order), dtype=torch.bool)
    seen[:, :t_c, t_c:] = False  # given tokens do not look at diffused ones
    seen &= ~(slot_states[:, order] == ABSENT).all(-1)[:, None, :]
    h = h + all_shift[:, :, 0]
    for i, block in enumerate(base.layers.stack()):
        q, k, v = block.project(h)
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).exp() * seen[:, None]
        attended = torch.zeros_like(q)
        for kind in (slice(0, t_c), slice(t_c, None)):  # a softmax for each kind of key
            weights = scores[..., kind] / scores[..., kind].sum(-1, keepdim=True).clamp(min=1e-30)
            attended = attended + weights @ v[..., kind, :]
        h = block.finish(h, attended, all_shift[:, :, i + 1])
    return layout.collect(base.tokens.read(layout.diffused, base.layers.last(h)[:, t_c:]))


@pytest.mark.parametrize("noise", ["scalar", "diagonal"])
@pytest.mark.parametrize(("theta_patch", "patch"), [(1, 1), (1, 2), (2, 2), (8, 8)])
def test_shared_attention_is_a_masked_dense_transformer(noise, theta_patch, patch):
    base = make(settings=replace(SMALL, noise=noise, theta_patch=theta_patch, patch=patch))
    values = normal(4, 7)
    values[1, 3] = values[2, 5] = values[2, 6] = NAN
    states = torch.tensor([DIFFUSED, GIVEN, GIVEN, GIVEN, DIFFUSED, ABSENT, GIVEN])
    off, s = normal(4, 2, seed=2), normal(4, 2 if noise == "diagonal" else 1, seed=3).exp()
    expected = naive(base, values, states, off, s)
    bound = base.bind(values, states)
    _, white, _ = bound.guess.denoise(off.unsqueeze(1), s.unsqueeze(1))
    got = base.network(off.unsqueeze(1), s.unsqueeze(1), white, bound).squeeze(1)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)


def test_dense_attention_differs_and_given_tokens_see_the_state():
    shared, dense = make(), make(settings=replace(SMALL, attention="dense"))
    dense.load_state_dict(shared.state_dict())
    x, z, s = normal(1, 5), normal(6, 1, 2, seed=2), torch.tensor(0.5)
    a, b = shared.condition(x).mean(z, s), dense.condition(x).mean(z, s)
    assert (a - b).abs().max() > 1e-3
    nothing = torch.full((1, 5), NAN)  # with no given token the two are the same network
    a, b = (base.condition(nothing, predict=True).mean(normal(6, 7), s) for base in (shared, dense))
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("attention", ["shared", "dense"])
@pytest.mark.parametrize("dim", [1, 3, 40])
def test_states_of_an_observation_do_not_meet(attention, dim):
    # States are packed into common sequences; state 5 must be a function of z[5] alone, here and in the gradient.
    denoiser = make(dim, 20, replace(SMALL, attention=attention)).condition(normal(1, 20))
    z = normal(70, 1, dim, seed=4).requires_grad_()
    s = torch.tensor(0.3)
    mean = denoiser.mean(z, s)
    (gradient,) = torch.autograd.grad(mean[5].sum(), z)
    assert gradient[5].abs().min() > 0
    gradient[5] = 0
    assert gradient.abs().max() == 0
    torch.testing.assert_close(denoiser.mean(z[5:6], s)[0], mean[5], atol=1e-5, rtol=1e-4)


def test_observations_are_encoded_once(monkeypatch):
    base = make()
    calls = []
    encode = base.layers.encode
    monkeypatch.setattr(base.layers, "encode", lambda *a: calls.append(1) or encode(*a))
    denoiser = base.condition(normal(3, 5))
    for level in (0.01, 1.0, 10.0):
        denoiser.mean(normal(4, 3, 2), torch.tensor(level))
    assert len(calls) == 1


# --- shapes, noise and missing data ----------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["shared", "dense"])
@pytest.mark.parametrize(("theta_patch", "patch"), [(1, 1), (1, 3), (2, 3), (8, 8)])
def test_a_batch_of_observations_equals_single_ones(attention, theta_patch, patch):
    base = make(settings=replace(SMALL, attention=attention, theta_patch=theta_patch, patch=patch, noise="diagonal"))
    x = normal(3, 5)
    x[1, 2:4] = NAN  # each row has its own missing entries; row 2 has none left in the last patch
    x[2, 3:] = NAN
    denoiser = base.condition(x)
    z, s = normal(50, 3, 2, seed=5), normal(50, 3, 2, seed=6).exp()
    together = denoiser.mean(z, s)
    for k in range(3):
        alone = base.condition(x[k : k + 1])
        torch.testing.assert_close(alone.mean(z[:, k], s[:, k]), together[:, k], atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(
            alone.mean(z[:, k : k + 1], s[:, k : k + 1]), together[:, k : k + 1], atol=2e-5, rtol=1e-4
        )


@pytest.mark.parametrize("noise", ["scalar", "diagonal"])
def test_noise_shapes_mean_the_same(noise):
    denoiser = make(settings=replace(SMALL, noise=noise)).condition(normal(3, 5))
    z = normal(4, 3, 2)
    expected = denoiser.mean(z, torch.tensor(0.7))
    for shape in [(1,), (1, 1), (3, 1), (4, 1, 1), (4, 3, 1)] + ([(2,), (4, 3, 2)] if noise == "diagonal" else []):
        torch.testing.assert_close(denoiser.mean(z, torch.full(shape, 0.7)), expected, atol=1e-5, rtol=1e-4)
    twice = denoiser.mean(torch.stack([z, z]), torch.tensor(0.7))  # more leading axes
    torch.testing.assert_close(twice[1], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("output", ["mean", "score"])
def test_score_is_stable_at_small_noise(output):
    base = make(settings=replace(SMALL, output=output))
    denoiser, twin = base.condition(normal(1, 5)), make(settings=replace(SMALL, output=output)).double()
    exact = twin.condition(normal(1, 5).double())
    z = normal(20, 2)
    for level in (1e-3, 0.1, 10.0):
        s = torch.tensor(level)
        want = (exact.mean(z.double(), s.double()) - z.double()) / s.double() ** 2
        # The network itself is accurate to about 1e-5 in float32, and the score is that over s.
        assert (denoiser.score(z, s) - want).abs().max() < 3e-5 / level + 1e-5


def test_missing_entries_are_left_out():
    base = make(settings=replace(SMALL, patch=2))
    x = normal(1, 5)
    x[0, 3] = NAN
    z, s = normal(9, 2), torch.tensor(0.4)
    denoiser = base.condition(x)
    assert denoiser.dim == 2
    seen = denoiser.mean(z, s)
    x[0, 2] += 1  # the neighbour in the patch is still seen
    assert (base.condition(x).mean(z, s) - seen).abs().max() > 1e-4
    x[0, 2] = NAN  # now the whole patch is gone, and with it its token
    assert len(base.condition(x).bound.layout.given) == 2  # type: ignore[attr-defined]


def test_variables_in_slots():
    grid = Grid(dim=3, x_dim=5, theta_patch=2, patch=4)
    assert (grid.tokens, grid.slots) == (4, 4)
    want = [[1, 2, 0, 0], [3, 0, 0, 0], [4, 5, 6, 7], [8, 0, 0, 0]]
    assert grid.to_slots(torch.arange(1, 9)).tolist() == want
    assert Grid(2, 3, 8, 8).to_slots(torch.arange(1, 6)).tolist() == [[1, 2, 0], [3, 4, 5]]
    assert Grid(2, 2, 1, 1).to_slots(torch.arange(1, 5)).tolist() == [[1], [2], [3], [4]]


def test_predict_puts_missing_entries_behind_the_parameters():
    base = make(settings=replace(SMALL, patch=2))
    x = normal(2, 5)
    x[:, [1, 4]] = NAN
    denoiser = base.condition(x, predict=True)
    assert denoiser.dim == 4
    layout = denoiser.bound.layout  # type: ignore[attr-defined]
    assert layout.variables.tolist() == [0, 1, 2 + 1, 2 + 4]
    assert layout.diffused.tolist() == [0, 1, 2, 4]  # two parameters, patch (x_0, x_1), patch (x_4)
    assert layout.given.tolist() == [3]
    v = normal(3, 4)
    assert torch.equal(layout.collect(layout.spread(v)), v)
    # x_0 is given though its token is diffused: the answer must follow it.
    z, s = normal(3, 2, 4), torch.tensor(0.4)
    before = denoiser.mean(z, s)
    x[:, 0] += 1
    assert (base.condition(x, predict=True).mean(z, s) - before).abs().max() > 1e-4


def test_loss_of_missing_data():
    base = make(settings=replace(SMALL, patch=2, masks=MaskMix(0, 0, 1, 0, 0), absent=0.0))
    theta, x = normal(6, 2), normal(6, 5)
    x[0] = NAN
    x[1, :4] = NAN
    loss = base.requires_grad_().loss(theta, x, torch.Generator().manual_seed(0))
    assert loss.shape == (6,)
    assert loss[0] == 0  # likelihood mask: nothing of row 0 is asked
    assert bool((loss[1:] > 0).all())
    loss.mean().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in base.parameters() if p.grad is not None)


# --- masks -----------------------------------------------------------------------------------------------------------


def test_a_kind_without_share_is_never_picked():
    mix = MaskMix(0.5, 0.0, 0.4999995, 0.0, 0.0)  # a rounding error short of one
    assert [mix.pick(p) for p in (0.0, 0.4999, 0.5, 0.9, 0.9999999)] == ["posterior"] * 2 + ["likelihood"] * 3


def test_masks_follow_their_names():
    g = torch.Generator().manual_seed(0)
    d, m = 3, 40
    assert draw_states("posterior", d, m, 1, False, g).tolist() == [DIFFUSED] * d + [GIVEN] * m
    assert draw_states("joint", d, m, 1, False, g).tolist() == [DIFFUSED] * (d + m)
    assert draw_states("likelihood", d, m, 1, False, g).tolist() == [GIVEN] * d + [DIFFUSED] * m
    drawn = torch.stack([draw_states("random_3", d, m, 1, False, g) for _ in range(500)])
    # 500 x 43 Bernoulli draws: the standard error of the share is 0.003.
    assert abs((drawn == GIVEN).float().mean() - 0.3) < 0.015
    drawn = torch.stack([draw_states("forecast", d, m, 4, False, g) for _ in range(500)])
    given = (drawn[:, d:] == GIVEN).long()
    assert bool((drawn[:, :d] == DIFFUSED).all())
    assert bool((given.diff(dim=-1) <= 0).all())  # a start, and nothing after it
    assert set(given.sum(-1).tolist()) == set(range(1, m + 1))
    drawn = torch.stack([draw_states("predictive", d, m, 4, True, g) for _ in range(500)])
    assert bool((drawn[:, :d] == DIFFUSED).all())
    # Absent with a uniform rate, whole patches or single entries: 500 rates, standard error 0.013.
    assert abs((drawn[:, d:] == ABSENT).float().mean() - 0.5) < 0.06
    for _ in range(200):
        assert bool((draw_states("random", 1, 1, 1, True, g) == DIFFUSED).any())


def test_groups_hold_the_shares_in_every_batch(monkeypatch):
    base = make(settings=replace(SMALL, groups=4, absent=0.0, masks=MaskMix(0.6, 0.05, 0.05, 0.2, 0.1)))
    seen: list[bool] = []
    inner = base.group_loss

    def spy(values, states, generator):
        seen.append(states.tolist() == [DIFFUSED] * 2 + [GIVEN] * 5)
        return inner(values, states, generator)

    monkeypatch.setattr(base, "group_loss", spy)
    for seed in range(10):
        base.loss(normal(8, 2), normal(8, 5), torch.Generator().manual_seed(seed))
    posterior = torch.tensor(seen).reshape(10, 4).sum(1)
    assert bool((posterior >= 2).all())  # share 0.5 of four groups (a random mask may be the posterior mask too)
    assert posterior.float().mean() < 3


# --- a linear-Gaussian series in closed form --------------------------------------------------------------------------

D, M = 2, 5
NOISE_SD = 0.7


def series_cov() -> Tensor:
    """The covariance of standardised (theta, x), x_j = theta_1 cos(j) + theta_2 sin(j) + noise."""
    j = torch.arange(M, dtype=torch.float64)
    lift = torch.cat([torch.eye(D, dtype=torch.float64), torch.stack([j.cos(), j.sin()], -1)])
    cov = lift @ lift.T
    cov[D:, D:] += NOISE_SD**2 * torch.eye(M, dtype=torch.float64)
    sd = cov.diagonal().sqrt()
    return cov / sd[:, None] / sd


def gaussian(given: list[int], asked: list[int], values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the asked variables, given values (K, len(given)) of others."""
    cov = series_cov()
    gain = cov[asked][:, given] @ torch.linalg.inv(cov[given][:, given])
    return values.double() @ gain.T, cov[asked][:, asked] - gain @ cov[given][:, asked]


def denoised(given: list[int], asked: list[int], values: Tensor, z: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """E[v | z, given] and its posterior standard deviations, for noise levels s (D,)."""
    mean, cov = gaussian(given, asked, values)
    gain = cov @ torch.linalg.inv(cov + torch.diag(s.double() ** 2))
    return mean + (z.double() - mean) @ gain.T, (cov - gain @ cov).diagonal().sqrt()


def fit(base: SimformerBase, draw, steps: int, batch: int, lr: float) -> None:
    """A short Adam run on fresh draws."""
    g = torch.Generator().manual_seed(1)
    base.prepare(*draw(20_000, g))
    optimiser = torch.optim.Adam(base.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        theta, x = draw(batch, g)
        loss = base.loss(theta, x, g).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    base.requires_grad_(False)


def draw_series(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    v = torch.randn(n, D + M, generator=g) @ torch.linalg.cholesky(series_cov()).float().T
    return v[:, :D], v[:, D:]


@pytest.fixture(scope="module")
def trained() -> SimformerBase:
    settings = replace(
        SMALL,
        noise="diagonal",
        theta_patch=2,
        patch=2,
        groups=2,
        absent=0.3,
        masks=MaskMix(0.4, 0.1, 0.1, 0.3, 0.1),
    )
    torch.manual_seed(0)
    base = SimformerBase(D, M, settings)
    fit(base, draw_series, steps=150, batch=64, lr=3e-3)
    return base


def observed(k: int) -> Tensor:
    """K draws of x."""
    return draw_series(k, torch.Generator().manual_seed(9))[1]


LEVELS = [[0.02, 0.02], [0.3, 0.3], [1.0, 1.0], [20.0, 20.0], [0.2, 3.0]]


@pytest.mark.parametrize("missing", [[], [3], [2, 3], [0, 1, 4]])
def test_denoised_mean_of_parameters(trained, missing):
    x = observed(100)
    kept = [j for j in range(M) if j not in missing]
    x[:, missing] = NAN
    denoiser = trained.condition(x)
    assert denoiser.dim == D
    for levels in LEVELS:
        s = torch.tensor(levels)
        mean, cov = gaussian([D + j for j in kept], [0, 1], x[:, kept])
        v = mean + normal(100, D, seed=7).double() @ torch.linalg.cholesky(cov).T
        z = v.float() + s * normal(100, D, seed=8)
        want, sd = denoised([D + j for j in kept], [0, 1], x[:, kept], z, s)
        error = ((denoiser.mean(z, s) - want) / sd).square().mean().sqrt()
        # In units of the open standard deviation. The guess is fitted on 20,000 rows (error about 0.01); the rest
        # is what the network has not yet unlearned.
        assert error < 0.08, (levels, error)


def test_predictive_matches_closed_form(trained):
    x = observed(2)
    gone, kept = [1, 2], [0, 3, 4]
    x[:, gone] = NAN
    n = 2000
    denoiser = trained.condition(x, predict=True)
    draws = run(denoiser, n, Sampler(steps=40), torch.Generator().manual_seed(0))
    assert draws.shape == (n, 2, D + 2)
    mean, cov = gaussian([D + j for j in kept], [0, 1, D + 1, D + 2], x[:, kept])
    sd = cov.diagonal().sqrt()
    # Sampling error: 0.022 sd for a mean, 1.6 % for an sd, 0.022 for a correlation, times 3 for the largest of many;
    # 40 steps cost another 4 % in sd (measured with the exact denoiser).
    assert ((draws.mean(0) - mean) / sd).abs().max() < 0.12
    assert (draws.std(0) / sd - 1).abs().max() < 0.12
    correlation = torch.corrcoef(draws[:, 0].T.double())
    assert (correlation - cov / sd[:, None] / sd).abs().max() < 0.1


def test_gaussian_guess_with_missing_rows():
    # Rows with entries missing must get the regression of their own pattern, and the fit must survive NaN.
    theta, x = draw_series(40_000, torch.Generator().manual_seed(3))
    holes = torch.rand(x.shape, generator=torch.Generator().manual_seed(4)) < 0.2
    guess = GaussianGuess(D + M)
    guess.fit(torch.cat([theta, torch.where(holes, NAN, x)], -1))
    assert (guess.cov - series_cov()).abs().max() < 0.03  # 40,000 * 0.64 pairs: standard error 0.006 to 0.009
    values = torch.cat([theta[:6], x[:6]], -1)
    values[1, D + 1] = values[2, D + 3] = values[2, D] = NAN
    part = guess(values, torch.arange(D, D + M), torch.arange(D))
    for row in range(6):
        kept = [D + j for j in range(M) if not torch.isnan(values[row, D + j])]
        mean, cov = gaussian(kept, [0, 1], values[row : row + 1, kept])
        assert (part.centre[row, 0] - mean[0]).abs().max() < 0.05
        assert (part.width[row, 0] - cov.diagonal().sqrt()).abs().max() < 0.02


@pytest.mark.parametrize("levels", [[1e-3], [0.3], [40.0], [1e-3, 1.0, 40.0]])
def test_gaussian_denoiser_in_closed_form(levels):
    guess = GaussianGuess(4)
    root = normal(4, 4)
    guess.fit(normal(500, 4, seed=2) @ root.T)
    values = normal(5, 4, seed=3)
    part = guess(values, torch.tensor([1]), torch.tensor([0, 2, 3]))
    off, s = normal(5, 7, 3, seed=4), torch.tensor(levels).reshape(1, 1, -1)
    pulled, white, open_ = part.denoise(off, s)
    cov = (part.axes[0] * part.roots[0]) @ part.axes[0].T
    noise = torch.diag(s.double().flatten().expand(3) ** 2)
    precision = torch.linalg.inv(cov.double() + noise)
    left = (noise - noise @ precision @ noise).diagonal().sqrt()
    torch.testing.assert_close(pulled.double(), off.double() @ precision, rtol=2e-3, atol=1e-5)
    torch.testing.assert_close(open_.double().expand(1, 1, 3)[0, 0], left, rtol=2e-3, atol=1e-7)
    torch.testing.assert_close(white, pulled / precision.diagonal().sqrt().float(), rtol=2e-3, atol=1e-5)
    per_row = part.denoise(off, s.expand(1, 7, -1).contiguous())  # one level for each state
    torch.testing.assert_close(per_row[0], pulled, rtol=1e-4, atol=1e-5)


def test_learns_a_bimodal_posterior():
    # theta ~ N(0, 1), x_j = a_j (theta^2 - 1) / sqrt(2) + noise: theta and x are uncorrelated, so the guess is no help.
    slopes = torch.tensor([0.9, -0.8, 0.7])
    noise_sd = (1 - slopes**2).sqrt()

    def draw(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
        theta = torch.randn(n, 1, generator=g)
        return theta, slopes * (theta**2 - 1) / 2**0.5 + noise_sd * torch.randn(n, 3, generator=g)

    torch.manual_seed(0)
    base = SimformerBase(1, 3, replace(SMALL, patch=2, masks=MaskMix(1, 0, 0, 0, 0), absent=0.0))
    fit(base, draw, steps=400, batch=96, lr=4e-3)
    theta, x = draw(400, torch.Generator().manual_seed(5))
    grid = torch.linspace(-5, 5, 2001, dtype=torch.float64)
    fit_to_x = (x.double().unsqueeze(1) - slopes * (grid[:, None] ** 2 - 1) / 2**0.5) / noise_sd
    log_post = -(fit_to_x**2).sum(-1) / 2 - grid**2 / 2
    for level in (0.2, 0.5, 2.0):
        z = theta + level * normal(400, 1, seed=6)
        weights = torch.softmax(log_post - ((z.double() - grid) / level) ** 2 / 2, -1)
        want = weights @ grid
        got = base.condition(x).mean(z[None], torch.tensor(level))[0, :, 0]
        error = (got - want).square().mean().sqrt()
        # The guess alone is z / (1 + level^2).
        alone = (z[:, 0] / (1 + level**2) - want).square().mean().sqrt()
        assert error < 0.55 * alone, (level, error, alone)  # measured: at most 0.46


# --- the paper's preset, settings, errors -----------------------------------------------------------------------------


@pytest.mark.parametrize("patch", [1, 2])
def test_paper_preset(patch):
    torch.manual_seed(0)
    base = SimformerBase(2, 3, replace(PAPER_SIMFORMER, patch=patch))
    assert len(base.layers.stack()) == 6
    block = base.layers.stack()[0]
    assert (block.heads, block.head_size) == (4, 10)
    assert tuple(block.qk.weight.shape) == (2 * 40, 50)
    assert tuple(block.widen.weight.shape) == (150, 50)
    assert isinstance(base.tokens, PaperTokens)
    assert tuple(base.tokens.noise.weight.shape) == (6 * 50, 128)
    name = base.tokens.get_buffer("name")
    torch.testing.assert_close(name @ name.T / 20, torch.eye(6 - patch), atol=1e-5, rtol=0)
    assert "tokens.name" not in dict(base.named_parameters())
    assert abs(base.s_min - 1e-3) < 1e-5
    assert abs(base.s_max - 12.45) < 0.01
    g = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(base.parameters(), lr=1e-3)
    theta = normal(2000, 2)
    x = torch.cat([theta, theta[:, :1] - theta[:, 1:]], -1) + 0.1 * normal(2000, 3, seed=2)
    history = []
    for _ in range(60):
        rows = torch.randint(2000, (128,), generator=g)
        loss = base.loss(theta[rows], x[rows], g).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        history.append(loss.item())
    assert sum(history[-15:]) < 0.8 * sum(history[:15])
    base.requires_grad_(False)
    mean = base.condition(x[:2]).mean(normal(5, 2, 2), torch.tensor(1e-3))
    torch.testing.assert_close(mean, normal(5, 2, 2), atol=1e-2, rtol=0)  # at noise 1e-3 the mean is z
    x[0, 1] = NAN
    assert base.condition(x[:1], predict=True).mean(normal(5, 3), torch.tensor(0.1)).shape == (5, 3)
    with pytest.raises(InputError, match="predict=True"):
        base.condition(x[:1])


def test_neighbours_share_the_places_of_the_papers_scalar():
    torch.manual_seed(0)
    tokens = PaperTokens(Grid(1, 5, 1, 3).filled, 2)  # tokens: theta; x_1 to x_3; x_4 and x_5
    values = Grid(1, 5, 1, 3).to_slots(torch.arange(1.0, 7.0))
    states = torch.tensor([[GIVEN, ABSENT, ABSENT], [GIVEN, DIFFUSED, GIVEN], [DIFFUSED, DIFFUSED, ABSENT]])
    index = torch.arange(3)
    h = tokens.embed(index, values, None, tokens.fixed(index, states, None)).detach()
    torch.testing.assert_close(h[:, :20], tokens.get_buffer("name"))
    assert h[0, 20:40].tolist() == [1] * 20
    assert h[1, 20:40].tolist() == [2] * 6 + [3] * 6 + [4] * 6 + [0] * 2
    assert h[2, 20:40].tolist() == [5] * 10 + [6] * 10
    own = tokens.given.detach().view(3, 10)
    torch.testing.assert_close(h[:, 40:], torch.stack([own[0], own[0] + own[2], torch.zeros(10)]))


@pytest.mark.parametrize(
    "settings",
    [
        PAPER_SIMFORMER,
        replace(PAPER_SIMFORMER, patch=3),
        replace(SMALL, noise="diagonal", patch=3),
        replace(SMALL, weigh=True),
    ],
)
def test_config_rebuilds(settings):
    base = make(settings=settings)
    config = json.loads(json.dumps(base.config()))
    assert config["network"] == "simformer"
    again = SimformerBase(config["dim"], config["x_dim"], SimformerSettings.from_config(config["settings"]))
    assert again.settings == settings
    again.load_state_dict(base.state_dict())
    x, z, s = normal(2, 5), normal(3, 2, 2), torch.tensor(0.3)
    torch.testing.assert_close(again.condition(x).mean(z, s), base.condition(x).mean(z, s))


@pytest.mark.parametrize(
    "bad",
    [
        {"noise": "full"}, {"attention": "sparse"}, {"tokens": "other"}, {"output": "eps"}, {"levels": "uniform"},
        {"layers": 0}, {"patch": 0}, {"theta_patch": 0}, {"absent": 1.5}, {"groups": 0}, {"repeats": 0}, {"tokens": "paper"},
        {"tokens": "paper", "width": 50, "noise": "diagonal"}, {"tokens": "paper", "width": 50, "noise": "scalar", "patch": 21},
    ],
)  # fmt: skip
def test_bad_settings(bad):
    with pytest.raises(InputError):
        SimformerSettings(**bad)


def test_bad_masks():
    with pytest.raises(InputError, match="sum to 1"):
        MaskMix(posterior=0.9)
    with pytest.raises(InputError, match="0 or more"):
        MaskMix(posterior=1.5, joint=-0.5, likelihood=0, predictive=0, random=0)


def test_bad_calls():
    base = make()
    x = normal(2, 5)
    with pytest.raises(InputError, match="shape"):
        base.condition(normal(2, 4))
    denoiser = base.condition(x)
    with pytest.raises(InputError, match="shape"):
        denoiser.mean(normal(4, 2, 3), torch.tensor(0.1))
    with pytest.raises(InputError, match="shape"):
        denoiser.mean(normal(4, 3, 2), torch.tensor(0.1))
    with pytest.raises(InputError, match="'scalar'"):
        denoiser.mean(normal(4, 2, 2), torch.tensor([0.1, 0.2]))
    x[0, 1] = NAN
    with pytest.raises(InputError, match="every row"):
        base.condition(x, predict=True)
    with pytest.raises(InputError, match="'full'"):
        denoiser.mean_full(normal(4, 2, 2), torch.eye(2))


def test_vp_levels_follow_the_schedule():
    base = make(settings=replace(SMALL, levels="vp", noise="diagonal", law=NoiseLaw(isotropic=0.45)))
    s = base.settings.draw_levels(torch.ones(20_000, 3), torch.Generator().manual_seed(0))
    t = base.settings.vp.t(s)
    # Uniform times: mean 1/2, standard error 0.002.
    assert abs(t[:, 0].mean() - 0.5) < 0.01
    assert abs((s[:, 0] == s[:, 2]).float().mean() - 0.45) < 0.015
    assert base.s_max == base.settings.vp.level(1.0)
