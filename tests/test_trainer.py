"""Training and files: a learned denoiser against the exact one, bad rows, seeds, a kill in mid-run, save and load."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Cauchy, Independent, MultivariateNormal, Normal, Uniform

from reprior import io
from reprior.diffusion.sampler import Sampler
from reprior.errors import FileFormatError, InputError
from reprior.loading import load
from reprior.networks.embedding import Embedding
from reprior.networks.fit import Training
from reprior.networks.mlp import MLPBase, MLPSettings
from reprior.posterior import Posterior
from reprior.simulations import Simulations
from reprior.trainer import split_rows, train

TINY = MLPSettings(width=16, blocks=1, embedding=Embedding(width=8, layers=1, features=4))
SHORT = Training(steps=20, batch=64, evaluate_every=5, ema=0.9)
PRIOR = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
VARIANCE = 0.2  # of the noise in x = theta_1 + theta_2 + noise


def pairs(n: int = 300, seed: int = 0) -> tuple[Tensor, Tensor]:
    """theta ~ N(0, I) in two dimensions, and x = theta_1 + theta_2 + N(0, VARIANCE)."""
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(n, 2, generator=generator)
    return theta, theta.sum(1, keepdim=True) + VARIANCE**0.5 * torch.randn(n, 1, generator=generator)


def posterior_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (K, 2) and covariance (2, 2) of theta | x; the correlation is -0.83."""
    total = 2 + VARIANCE
    return x / total * torch.ones(2), torch.eye(2) - torch.ones(2, 2) / total


def quick(folder: Path | None = None, training: Training = SHORT, seed: int = 0, **others) -> Any:
    theta, x = pairs()
    return train(theta, x, PRIOR, settings=TINY, training=training, seed=seed, folder=folder, progress=False, **others)


def weights(posterior: Posterior) -> dict[str, Tensor]:
    return posterior.base.state_dict()


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.fixture(scope="module")
def learned() -> Posterior:
    """A real training, of a few seconds."""
    theta, x = pairs(4_000)
    settings = MLPSettings(noise="scalar", width=48, blocks=1, embedding=Embedding(kind="none"))
    training = Training(steps=800, batch=256, evaluate_every=200, ema=0.98, learning_rate=5e-3)
    return train(theta, x, PRIOR, settings=settings, training=training, progress=False)


# --- what is learned ----------------------------------------------------------------------------------------


def test_denoised_mean_and_score_approach_the_exact_ones(learned):
    # The linear guess takes the two parameters as independent given x, so their correlation has to be learned.
    x = torch.linspace(-2, 2, 5).unsqueeze(1)
    m, cov = posterior_of(x)
    shift, scale = learned.scales.theta.shift, learned.scales.theta.scale
    generator = torch.Generator().manual_seed(1)
    start = MLPBase(2, 1, learned.base.settings)
    start.prepare(*(learned.scales.theta.forward(pairs(4_000)[0]), learned.scales.x.forward(pairs(4_000)[1])))
    for s in (0.1, 0.4, 1.5):
        theta = m + torch.randn(400, 5, 2, generator=generator) @ torch.linalg.cholesky(cov).T
        z = theta + s * scale * torch.randn(400, 5, 2, generator=generator)
        gain = cov @ torch.linalg.inv(cov + torch.diag((s * scale) ** 2))
        exact = m + (z - m) @ gain.T
        errors = []
        for base in (learned.base, start):
            denoiser = base.condition(learned.scales.x.forward(x))
            z_s = (z - shift) / scale
            mean = shift + scale * denoiser.mean(z_s, torch.tensor(s))
            errors.append(float((mean - exact).detach().square().mean().sqrt()))
            score = denoiser.score(z_s, torch.tensor(s)) / scale
            assert torch.allclose(score, (mean - z) / (s * scale) ** 2, atol=1e-2)
        # Learned: within 30 % of the untrained network's distance to the exact mean.
        assert errors[0] < 0.3 * errors[1], (s, errors)


def test_draws_have_the_learned_correlation(learned):
    m, cov = posterior_of(torch.tensor([[0.7]]))
    theta = learned.sample((8_000,), torch.tensor([0.7]), seed=0)
    # Sampling errors are 0.01; the rest is left to 800 steps of training (the untrained network gives 0).
    assert float(torch.corrcoef(theta.T)[0, 1]) == pytest.approx(float(cov[0, 1] / cov[0, 0]), abs=0.1)
    assert torch.allclose(theta.mean(0), m[0], atol=0.1)
    assert torch.allclose(theta.std(0), cov.diagonal().sqrt(), rtol=0.1)


def test_density_of_the_learned_posterior(learned):
    m, cov = posterior_of(torch.tensor([[0.7]]))
    exact = MultivariateNormal(m[0], cov)
    theta = m[0] + torch.randn(200, 2, generator=torch.Generator().manual_seed(2)) @ torch.linalg.cholesky(cov).T
    value = learned.log_prob(theta, torch.tensor([0.7]))
    # A KL divergence of a few hundredths; independent parameters would be off by 0.59.
    assert abs(float((exact.log_prob(theta) - value).mean())) < 0.1


# --- rows, names, seeds -------------------------------------------------------------------------------------


def test_bad_rows_are_dropped_and_reported():
    theta, x = pairs()
    x[3], theta[7, 0], x[9] = math.nan, math.inf, -math.inf
    with pytest.warns(UserWarning, match="dropped 3 of 300 simulations"):
        posterior = train(theta, x, PRIOR, settings=TINY, training=SHORT, progress=False)
    assert posterior.simulations.dropped == 3
    assert len(posterior.simulations) == 297
    assert bool(torch.isfinite(posterior.sample((5,), torch.zeros(1), seed=0)).all())


def test_too_many_bad_rows_are_refused():
    theta, x = pairs()
    x[:40] = math.nan
    with pytest.raises(InputError, match=r"40 of 300 simulations \(13.3%\)"):
        train(theta, x, PRIOR, settings=TINY, training=SHORT, progress=False)


def test_the_same_seed_gives_the_same_posterior():
    torch.manual_seed(9)
    state = torch.get_rng_state()
    one = quick(seed=1)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(10)
    two, other = quick(seed=1), quick(seed=2)
    assert equal(weights(one), weights(two))
    assert not equal(weights(one), weights(other))


def test_names_and_simulations_are_kept():
    posterior = quick(parameters=("a", "b"))
    theta, x = pairs()
    assert posterior.parameters == ("a", "b")
    assert torch.equal(posterior.simulations.theta, theta)  # pyright: ignore[reportOptionalMemberAccess]
    assert torch.equal(posterior.simulations.x, x)  # pyright: ignore[reportOptionalMemberAccess]
    assert quick().parameters == ("theta_1", "theta_2")
    assert not any(p.requires_grad for p in posterior.base.parameters())
    assert not posterior.base.training


def test_fit_result_is_returned_and_patience_stops():
    posterior, result = quick(
        training=replace(SHORT, steps=5_000, patience=2, learning_rate=0.3, clip=1e9), return_fit=True
    )
    assert isinstance(posterior, Posterior)
    assert result.stopped == "patience"
    assert result.best_step == result.steps - 10 < 5_000


def test_what_cannot_be_trained_is_refused():
    theta, x = pairs()
    with pytest.raises(InputError, match="prior has dimension 3"):
        train(theta, x, Independent(Normal(torch.zeros(3), 1.0), 1), progress=False)
    with pytest.raises(InputError, match="zero density under the prior"):
        train(theta, x, Independent(Uniform(torch.zeros(2), torch.ones(2)), 1), progress=False)
    with pytest.raises(InputError, match="network 'flow' is unknown"):
        train(theta, x, PRIOR, network="flow", progress=False)
    with pytest.raises(InputError, match="300 rows and x has 299"):
        train(theta, x[1:], PRIOR, progress=False)
    with pytest.raises(InputError, match="too few to hold out"):
        train(theta[:1], x[:1], PRIOR, settings=TINY, progress=False)


def test_entries_that_an_embedding_compares_are_standardised_alike():
    prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    theta = prior.sample((300,))
    x = theta[:, :1] + torch.arange(6.0) * torch.randn(300, 6, generator=torch.Generator().manual_seed(1))
    for kind, alike in (("peak", True), ("dense", False)):
        settings = MLPSettings(width=8, blocks=1, embedding=Embedding(kind=kind, width=8, features=4, item=2))
        posterior = train(theta, x, prior, settings=settings, training=Training(steps=4), progress=False)
        assert bool((posterior.scales.x.scale == posterior.scales.x.scale[0]).all()) == alike


def test_held_out_rows_are_kept_apart():
    held_out, kept = split_rows(100, 0.05, seed=3)
    assert len(held_out) == 5
    assert torch.equal(torch.cat([held_out, kept]).sort().values, torch.arange(100))
    assert torch.equal(held_out, split_rows(100, 0.05, seed=3)[0])
    assert len(split_rows(4, 0.05, seed=0)[0]) == 1


# --- a kill in mid-run --------------------------------------------------------------------------------------

LONG = replace(SHORT, steps=100, evaluate_every=10, patience=100, checkpoint_seconds=0.0)


def slow_run(folder: str) -> None:
    """The training `quick(LONG)`, slowed down so that it can be killed on the way; in a process of its own."""
    fast = MLPBase.loss

    def slow(self, theta, x, generator):
        time.sleep(0.02)
        return fast(self, theta, x, generator)

    MLPBase.loss = slow
    quick(Path(folder), LONG)


def steps_kept(folder: Path) -> int:
    """How far the run got that is kept in a folder; 0 if there is none."""
    files = list(folder.glob("fit-*.safetensors"))
    return io.read(files[0], "fit").meta["result"]["step"] if files else 0


def test_killed_training_goes_on_to_the_same_posterior(tmp_path):
    code = (
        f"import sys, torch; torch.set_num_threads(1); sys.path.insert(0, {str(Path(__file__).parent)!r}); "
        f"from test_trainer import slow_run; slow_run({str(tmp_path)!r})"
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        waited = time.monotonic()
        while steps_kept(tmp_path) < 12:
            assert child.poll() is None, "the training ended before it could be killed"
            assert time.monotonic() - waited < 240, "the training never got anywhere"
            time.sleep(0.01)
    finally:
        child.kill()  # SIGKILL: nothing can be tidied up
        child.wait()
    assert 12 <= steps_kept(tmp_path) < LONG.steps
    rarely = replace(LONG, checkpoint_seconds=60.0)
    resumed, result = quick(tmp_path, rarely, return_fit=True)
    whole, expected = quick(None, rarely, return_fit=True)
    assert result.history == expected.history
    assert equal(weights(resumed), weights(whole))
    assert steps_kept(tmp_path) == LONG.steps
    assert len([p for p in tmp_path.iterdir() if p.suffix != ".tmp"]) == 1


@pytest.mark.parametrize("other", ["x", "base", "seed"])
def test_a_run_of_other_data_or_settings_is_not_gone_on_with(tmp_path, other):
    first = quick(tmp_path)
    theta, x = pairs()
    x[17] += 1e-3 if other == "x" else 0.0
    settings = replace(TINY, width=17) if other == "base" else TINY
    given: dict[str, Any] = {"settings": settings, "training": SHORT, "seed": int(other == "seed"), "progress": False}
    with pytest.warns(UserWarning, match=f"of other settings only, and they are not used; .* differ in: .*{other}"):
        second = train(theta, x, PRIOR, folder=tmp_path, **given)
    assert equal(weights(second), weights(train(theta, x, PRIOR, **given)))
    assert len(list(tmp_path.iterdir())) == 2
    assert equal(weights(quick(tmp_path)), weights(first))  # both are kept


# --- save and load ------------------------------------------------------------------------------------------


class Own:
    """A user's own prior, which no file can hold."""

    def sample(self, shape) -> Tensor:
        return torch.randn(*shape, 2)

    def log_prob(self, theta: Tensor) -> Tensor:
        return -theta.square().sum(-1) / 2


class Square(nn.Module):
    """A user's own embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.cat([x, x**2], -1))


def test_loaded_posterior_is_the_same(tmp_path):
    posterior = replace(quick(parameters=("a", "b")), sampler=Sampler(kind="heun", steps=9))
    path = posterior.save(tmp_path / "deep" / "posterior")
    assert path == tmp_path / "deep" / "posterior.safetensors"
    again = load(path)
    assert isinstance(again, Posterior)
    x = torch.tensor([0.4])
    assert torch.equal(again.sample((20,), x, seed=5), posterior.sample((20,), x, seed=5))
    theta = torch.zeros(3, 2)
    assert torch.equal(again.log_prob(theta, x, steps=4), posterior.log_prob(theta, x, steps=4))
    assert (again.parameters, again.sampler) == (posterior.parameters, posterior.sampler)
    assert torch.equal(again.prior.log_prob(theta), PRIOR.log_prob(theta))
    assert torch.equal(again.simulations.x, posterior.simulations.x)  # pyright: ignore[reportOptionalMemberAccess]
    assert not any(p.requires_grad for p in again.base.parameters())
    # The same content gives the same bytes.
    assert again.save(tmp_path / "again").read_bytes() == path.read_bytes()


def test_far_outliers_in_x_survive_the_file(tmp_path):
    posterior = quick()
    assert posterior.scales.x.compress
    again = load(posterior.save(tmp_path / "posterior"))
    x = torch.tensor([500.0])
    assert torch.equal(again.sample((5,), x, seed=5), posterior.sample((5,), x, seed=5))


def test_simulations_can_be_left_out(tmp_path):
    posterior = quick()
    again = load(posterior.save(tmp_path / "posterior", simulations=False))
    assert isinstance(again, Posterior)
    assert again.simulations is None
    assert len(again.with_simulations(*pairs()).simulations) == 300  # pyright: ignore[reportArgumentType]


def test_a_prior_that_no_file_can_hold_is_asked_for(tmp_path):
    theta, x = pairs()
    posterior = train(theta, x, Own(), settings=TINY, training=SHORT, progress=False)
    path = posterior.save(tmp_path / "posterior")
    with pytest.raises(InputError, match=r"load\(path, prior=...\) needs it"):
        load(path)
    with pytest.raises(InputError, match="the prior has 3 parameters; the posterior has 2"):
        load(path, prior=[Normal(0.0, 1.0)] * 3)
    mine = Own()
    again = load(path, prior=mine)
    assert isinstance(again, Posterior)
    assert again.prior is mine
    z = torch.zeros(1)
    assert torch.equal(again.sample((5,), z, seed=1), posterior.sample((5,), z, seed=1))


def test_an_own_embedding_is_asked_for(tmp_path):
    torch.manual_seed(4)
    posterior = quick(embedding=Square())
    path = posterior.save(tmp_path / "posterior")
    with pytest.raises(InputError, match=r"load\(path, embedding=module\) needs it"):
        load(path)
    again = load(path, embedding=Square())  # its weights come from the file
    z = torch.zeros(1)
    assert torch.equal(again.sample((5,), z, seed=1), posterior.sample((5,), z, seed=1))
    with pytest.raises(FileFormatError, match="does not hold what its kind 'posterior' needs"):
        load(path, embedding=nn.Linear(1, 3))


def test_damaged_and_foreign_files_are_refused(tmp_path):
    path = quick().save(tmp_path / "posterior")
    data = path.read_bytes()
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(data[: len(data) // 2])
    with pytest.raises(FileFormatError, match="truncated"):
        load(cut)
    changed = bytearray(data)
    changed[-3] ^= 1
    cut.write_bytes(bytes(changed))
    with pytest.raises(FileFormatError, match="altered"):
        load(cut)
    cut.write_bytes(b"not a posterior at all, but some text")
    with pytest.raises(FileFormatError, match="not a safetensors file"):
        load(cut)
    theta, x = pairs()
    other = Simulations.create(theta, x, PRIOR).save(tmp_path / "simulations")
    with pytest.raises(FileFormatError, match="holds 'simulations'"):
        load(other)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load(tmp_path / "nowhere")


def test_a_file_with_something_left_out_is_refused(tmp_path):
    tensors, meta = quick().to_parts(simulations=True)
    without = {k: v for k, v in tensors.items() if k != "base.out.weight"}
    with pytest.raises(FileFormatError, match=r"out\.weight"):
        load(io.write(tmp_path / "one", "posterior", without, meta))
    with pytest.raises(FileFormatError, match="prior"):
        load(io.write(tmp_path / "two", "posterior", tensors, {k: v for k, v in meta.items() if k != "prior"}))
    wrong = {**meta, "base": {**meta["base"], "network": "flow"}}
    with pytest.raises(FileFormatError, match="network 'flow'"):
        load(io.write(tmp_path / "three", "posterior", tensors, wrong))


def test_the_users_embedding_is_copied():
    embedding = nn.Linear(1, 3)
    before = [p.clone() for p in embedding.parameters()]
    first = quick(embedding=embedding)
    assert all(torch.equal(a, b) for a, b in zip(before, embedding.parameters(), strict=True))
    assert all(p.requires_grad for p in embedding.parameters())
    assert not torch.equal(weights(first)["embedding.weight"], embedding.weight)


def test_settings_of_another_network_are_refused():
    with pytest.raises(InputError, match="network 'simformer' takes SimformerSettings; settings is MLPSettings"):
        train(*pairs(), PRIOR, network="simformer", settings=TINY, progress=False)


def test_a_prior_that_theta_does_not_follow_is_warned_of():
    theta, x = pairs(2_000)
    narrow = Independent(Normal(torch.zeros(2), torch.full((2,), 0.5)), 1)
    with pytest.warns(UserWarning, match="theta_1 of the simulations is not distributed as under the prior"):
        train(theta, x, narrow, settings=TINY, training=SHORT, progress=False)


def test_more_bad_rows_can_be_allowed():
    theta, x = pairs()
    x[::3] = torch.nan
    with pytest.raises(InputError, match="network='simformer'"):
        train(theta, x, PRIOR, settings=TINY, training=SHORT, progress=False)
    with pytest.warns(UserWarning, match="dropped 100 of 300"):
        train(theta, x, PRIOR, settings=TINY, training=SHORT, progress=False, max_bad_fraction=0.5)


def test_double_precision_as_torchs_default_changes_nothing():
    plain = weights(quick())
    torch.set_default_dtype(torch.float64)
    try:
        double = quick()
    finally:
        torch.set_default_dtype(torch.float32)
    assert double.base.out.weight.dtype == torch.float32
    assert plain.keys() == weights(double).keys()
    assert torch.isfinite(double.sample((5,), torch.zeros(1), seed=0)).all()


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="is a folder"):
        load(tmp_path)


def test_a_heavy_tailed_parameter_is_warned_of():
    theta, x = pairs()
    far = theta.clone()
    far[:, 1] = torch.tan(torch.pi * (torch.rand(300, generator=torch.Generator().manual_seed(1)) - 0.5))  # Cauchy
    prior = [Normal(torch.zeros(1), torch.ones(1)), Cauchy(torch.zeros(1), torch.ones(1))]
    with pytest.warns(
        UserWarning, match="theta_2 has heavy tails: its standard deviation is .* Train on its logarithm"
    ):
        train(far, x, prior, settings=TINY, training=SHORT, progress=False)
