"""A method of another package: registered from outside, then used by its name alone."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from exact import exact_posterior
from torch import Tensor
from torch.distributions import MultivariateNormal

import reprior
from reprior.diffusion.sampler import chunked
from reprior.errors import InputError
from reprior.methods import Drawn, Method, find, register, registered
from reprior.networks.fit import Training
from reprior.networks.mlp import MLPSettings

# --- all that a user writes ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MomentsSettings:
    """Settings: the number of base draws."""

    pool: int = 8_000


@register
class Moments(Method):
    """A Gaussian with the moments of the weighted base draws: right where q(theta | x) is Gaussian."""

    name = "moments"
    summary = "a Gaussian with the moments of weighted base draws"
    Settings = MomentsSettings
    pools = True

    def draw(self, denoiser, n, sampler, generator):
        pool = chunked(denoiser, self.settings.pool, sampler, generator)  # (pool, K, D)
        log_w = self.change.log_w(pool)
        w = torch.softmax(log_w, 0).unsqueeze(-1)
        mean = (w * pool).sum(0)
        gap = w.sqrt() * (pool - mean)
        root = torch.linalg.cholesky(torch.einsum("nki,nkj->kij", gap, gap))
        noise = torch.randn(n, *mean.shape, generator=generator)
        return Drawn(mean + torch.einsum("kij,nkj->nki", root, noise), log_w, ("drawn by moments",) * len(mean))

    def lighter(self, draws=200):
        return Moments(self.problem, MomentsSettings(min(draws, self.settings.pool)))


@register
class HalfWay(Method):
    """Deliberately wrong: the moments of r^(1/2)."""

    name = "half_way"
    draw = Moments.draw
    Settings = MomentsSettings

    def __init__(self, problem, settings=None):
        super().__init__(problem, settings)
        self.half = problem.change.minus(problem.change.quadratic.scaled(0.5))

    @property
    def change(self):
        return self.half


# --- a linear-Gaussian posterior that a file can hold ----------------------------------------------------------------

C = 0.4
PRIOR = MultivariateNormal(torch.tensor([1.0, -1.0]), torch.tensor([[1.0, 0.3], [0.3, 2.0]]))
TARGET = MultivariateNormal(torch.tensor([1.8, -1.6]), torch.tensor([[0.4, -0.1], [-0.1, 0.5]]))
X = torch.tensor([1.5, -1.8])
APART = torch.tensor([0.0, 0.0])  # further from q, where half a change is felt


@pytest.fixture(scope="module")
def posterior() -> reprior.Posterior:
    """An MLP whose network is still zero: what is left is its linear-Gaussian guess, which is exact here."""
    generator = torch.Generator().manual_seed(0)
    theta = PRIOR.mean + torch.randn(10_000, 2, generator=generator) @ PRIOR.scale_tril.T
    x = theta + C**0.5 * torch.randn(10_000, 2, generator=generator)
    none = Training(steps=1, evaluate_every=1, batch=2, learning_rate=1e-9, schedule="constant")
    return reprior.train(theta, x, PRIOR, settings=MLPSettings(width=8, blocks=1), training=none, progress=False)


def check(theta: Tensor, law: MultivariateNormal) -> None:
    # 8,000 base draws of relative ESS .3, 4,000 draws, and a guess fitted to 10,000 rows: standard error 0.03 sd.
    assert float(((theta.mean(0) - law.mean) / law.stddev).abs().max()) < 0.12
    assert torch.allclose(torch.cov(theta.T), law.covariance_matrix, atol=0.1 * float(law.variance.max()))


def test_a_method_of_another_package_draws_the_closed_form(posterior):
    assert registered()["moments"] is find("moments") is Moments
    adapted = reprior.adapt(posterior, TARGET, "moments")
    theta, info = adapted.sample((4_000,), X, seed=1, return_info=True)
    check(theta, exact_posterior(TARGET, X, C))
    assert (info.method, info.why, info.told) == ("moments", "asked for", ("drawn by moments",))
    assert 0.1 < info.relative_ess[0] < 1
    assert info.log_w is not None
    assert len(info.log_w) == 8_000  # its own draws: none were made to judge them
    both = adapted.sample_batched((4_000,), torch.stack([X, X + 0.5]), seed=1)
    check(both[:, 1], exact_posterior(TARGET, X + 0.5, C))


def test_its_settings_are_checked_and_kept_by_a_file(posterior, tmp_path):
    with pytest.raises(InputError, match="method 'moments' takes MomentsSettings; got SIRSettings"):
        reprior.adapt(posterior, TARGET, "moments", reprior.SIRSettings())
    adapted = reprior.adapt(posterior, TARGET, "moments", MomentsSettings(pool=700))
    loaded = reprior.load(adapted.save(tmp_path / "moments"))
    assert isinstance(loaded, reprior.AdaptedPosterior)
    assert isinstance(loaded.method, Moments)
    assert loaded.method.settings == MomentsSettings(pool=700)
    assert torch.equal(loaded.sample((50,), X, seed=3), adapted.sample((50,), X, seed=3))


def test_it_is_diagnosed_like_any_other(posterior, tmp_path):
    good, bad = (reprior.adapt(posterior, TARGET, name) for name in ("moments", "half_way"))
    loaded = reprior.load(good.save(tmp_path / "moments"))
    assert isinstance(loaded, reprior.AdaptedPosterior)
    report = reprior.diagnose(loaded, APART, seed=0)
    assert "moments" in str(report)
    assert report.verdict == "ok", str(report)
    report = reprior.diagnose(bad, APART, seed=0, settings=reprior.DiagnoseSettings(pairs=0))
    assert report.verdict != "ok", str(report)
    assert any("two methods" in reason or "reweighted" in reason for reason in report.reasons), report.reasons


def test_what_it_lacks_is_refused_in_plain_words(posterior):
    adapted = reprior.adapt(posterior, TARGET, "moments")
    with pytest.raises(InputError, match="method 'moments' has no density of its own to correct with"):
        adapted.sample((10,), X, seed=0, correct="resample")


# --- the registry ----------------------------------------------------------------------------------------------------


def test_a_name_has_one_method():
    assert register(Moments) is Moments  # the same class again, as when a notebook's cell is run again

    class Other(Method):
        name = "moments"

    with pytest.raises(InputError, match=r"a method 'moments' is registered already: .*test_registered\.Moments"):
        register(Other)
    assert find("moments") is Moments


@pytest.mark.parametrize("what", [None, 3, dict, Method, type("Nameless", (Method,), {"name": ""}), MomentsSettings()])
def test_what_is_no_method_is_not_registered(what):
    before = registered()
    with pytest.raises(InputError, match=r"register takes a subclass of reprior\.methods\.Method that has a name"):
        register(what)
    assert registered() == before


def test_the_list_of_methods_is_a_copy():
    registered().clear()
    assert "transport" in registered()
    assert all(kind.name == name and kind.summary for name, kind in registered().items() if name != "half_way")
