"""Every method survives a file: the same samples for the same seed, and a clear word where it cannot."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats as scipy_stats
from torch.distributions import Categorical, Distribution, MixtureSameFamily, MultivariateNormal

import reprior
import reprior.ratio_from_samples
from reprior import io, priors
from reprior.diffusion.sampler import Sampler
from reprior.errors import FileFormatError, InputError
from reprior.methods import RatioSettings, RejuvenateSettings, SIRSettings, registered
from reprior.methods.learned import NRE, ratio
from reprior.networks.fit import Training
from reprior.networks.mlp import MLPBase, MLPSettings
from reprior.networks.ratio import RatioNetworkSettings
from reprior.posterior import Posterior, Scales
from reprior.simulations import Simulations
from reprior.standardizer import Standardizer

stats: Any = scipy_stats  # its annotations take numbers only

PRIOR = MultivariateNormal(torch.tensor([1.0, -1.0]), torch.diag(torch.tensor([4.0, 1.0])))
TARGET = MultivariateNormal(torch.tensor([2.0, -1.0]), torch.diag(torch.tensor([1.0, 0.5])))
X = torch.tensor([1.5, -0.8])
LEARNED = RatioSettings(
    observations=32,
    draws=16,
    network=RatioNetworkSettings(width=16, layers=2),
    training=Training(steps=6, batch=128, evaluate_every=3, ema=0.5, validation=0.1),
    sampler=Sampler(steps=6),
)
SETTINGS = {
    **dict.fromkeys(("nre", "kliep", "pearson", "reverse_kl", "hellinger"), LEARNED),
    "rejuvenate": RejuvenateSettings(pool=300, steps=6),
    "sir": SIRSettings(pool=200),
}
LIBRARY = [name for name, kind in registered().items() if kind.__module__.startswith("reprior.methods")]


def simulate(n: int = 500) -> tuple[torch.Tensor, torch.Tensor]:
    theta = priors.sample(PRIOR, n, 0)
    return theta, theta + 0.5**0.5 * torch.randn(n, 2, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def posterior() -> Posterior:
    """An MLP base whose linear guess is fitted and whose network is not trained: for a file any weights will do."""
    theta, x = simulate()
    scales = Scales(Standardizer.fit(theta, robust=False), Standardizer.fit(x, robust=True, compress=True))
    torch.manual_seed(0)
    base = MLPBase(2, 2, MLPSettings(noise="full", width=8, blocks=1))
    base.prepare(scales.theta.forward(theta), scales.x.forward(x))
    torch.nn.init.normal_(base.out.weight, std=0.02)
    names = ("mass", "spin")
    simulations = Simulations(theta, x, PRIOR, names)
    return Posterior(base.requires_grad_(False).eval(), scales, PRIOR, simulations, names, Sampler(steps=8))


def draw(adapted) -> torch.Tensor:
    return adapted.sample((20,), X, seed=4)


@pytest.mark.parametrize("method", [name for name in LIBRARY if name != "auto"])
def test_the_same_samples_after_a_file(method, posterior, tmp_path):
    adapted = reprior.adapt(posterior, TARGET, method, SETTINGS.get(method), seed=3)
    loaded = reprior.load(adapted.save(tmp_path / method))
    assert isinstance(loaded, reprior.AdaptedPosterior)
    assert torch.equal(draw(loaded), draw(adapted))
    assert (loaded.method.name, loaded.why, loaded.warnings) == (method, adapted.why, adapted.warnings)
    assert loaded.sampler == adapted.sampler == Sampler(steps=8)
    assert loaded.method.config() == adapted.method.config()
    assert loaded.method.settings == adapted.method.settings
    assert loaded.posterior.parameters == ("mass", "spin")
    assert loaded.evidence_ratio(X, draws=50) == adapted.evidence_ratio(X, draws=50)
    again = reprior.load(loaded.save(tmp_path / "again"))
    assert isinstance(again, reprior.AdaptedPosterior)
    assert torch.equal(draw(again), draw(adapted))


def test_a_sampler_of_its_own_and_a_lost_target_are_remembered(posterior, tmp_path):
    adapted = replace(reprior.adapt(posterior, TARGET, "sir"), sampler=Sampler(steps=5))
    loaded = reprior.load(adapted.save(tmp_path / "own"))
    assert isinstance(loaded, reprior.AdaptedPosterior)
    assert (loaded.sampler, loaded.posterior.sampler) == (Sampler(steps=5), Sampler(steps=8))
    with pytest.warns(UserWarning, match=r"the target cannot be written .* load\(path, target="):
        reprior.adapt(posterior, TARGET.log_prob, "sir").save(tmp_path / "lost")


def test_rejuvenation_over_a_learned_ratio(posterior, tmp_path, monkeypatch):
    monkeypatch.setattr(NRE, "presets", {"best": LEARNED})
    settings = RejuvenateSettings(pool=300, steps=6, kernel="learned")
    adapted = reprior.adapt(posterior, TARGET, "rejuvenate", settings, seed=3)
    theta, info = adapted.sample((20,), X, seed=4, return_info=True)
    assert info.told[0].endswith("by learned")
    monkeypatch.setattr(ratio, "learn", None)  # a file holds the ratio: nothing is trained again
    loaded = reprior.load(adapted.save(tmp_path / "r"))
    assert torch.equal(draw(loaded), theta)
    assert loaded.method.config() == adapted.method.config()  # pyright: ignore[reportAttributeAccessIssue]


def test_a_ratio_without_gradient_is_rejuvenated_in_one_step(posterior, monkeypatch):
    monkeypatch.setattr(NRE, "presets", {"best": LEARNED})
    settings = RejuvenateSettings(pool=300, steps=6, kernel="learned", ess=0.9)  # would take many tempered steps
    frozen = stats.multivariate_t([2.0, -1.0], [[1.0, 0.0], [0.0, 0.5]], df=4)
    adapted = reprior.adapt(posterior, frozen, "rejuvenate", settings, seed=3)
    theta, info = adapted.sample((20,), X, seed=4, return_info=True)
    assert info.figures["stages"] == (1.0,)
    assert bool(torch.isfinite(theta).all())


def test_auto_is_saved_as_what_it_chose(posterior, tmp_path):
    adapted = reprior.adapt(posterior, TARGET)
    loaded = reprior.load(adapted.save(tmp_path / "a"))
    assert isinstance(loaded, reprior.AdaptedPosterior)
    assert loaded.method.name == adapted.method.name == "transport"
    assert loaded.why == adapted.why
    assert torch.equal(draw(loaded), draw(adapted))
    assert loaded.method.config() == adapted.method.config()
    assert loaded.method.config()["fallback"]["name"] == "rejuvenate"
    assert type(loaded.method.fallback) is type(adapted.method.fallback)  # pyright: ignore[reportAttributeAccessIssue]


def test_mixture_target(posterior, tmp_path):
    mixture = MixtureSameFamily(
        Categorical(torch.tensor([0.3, 0.7])), MultivariateNormal(torch.eye(2), 0.5 * torch.eye(2).expand(2, 2, 2))
    )
    adapted = reprior.adapt(posterior, mixture, "transport")
    loaded = reprior.load(adapted.save(tmp_path / "m"))
    assert torch.equal(draw(loaded), draw(adapted))


def test_target_known_by_samples(posterior, tmp_path, monkeypatch):
    quick = Training(steps=6, batch=64, evaluate_every=3, ema=0.5)
    learn = functools.partial(reprior.ratio_from_samples.learn_log_ratio, training=quick)
    monkeypatch.setattr(reprior.ratio_from_samples, "learn_log_ratio", learn)
    adapted = reprior.adapt(posterior, priors.sample(TARGET, 300, 5), "rejuvenate", SETTINGS["rejuvenate"])
    loaded = reprior.load(adapted.save(tmp_path / "s"))
    assert isinstance(loaded, reprior.AdaptedPosterior)
    assert loaded.change.kind == "samples"
    assert loaded.change.lowest_log_p == adapted.change.lowest_log_p > -1e6
    assert loaded.change.lowest_log_q == adapted.change.lowest_log_q > -1e6
    assert torch.equal(draw(loaded), draw(adapted))
    assert torch.equal(draw(reprior.load(loaded.save(tmp_path / "s2"))), draw(adapted))


def test_callable_target_has_to_be_given_again(posterior, tmp_path):
    def log_q(theta: torch.Tensor) -> torch.Tensor:
        return TARGET.log_prob(theta)

    adapted = reprior.adapt(posterior, log_q, "sir", SETTINGS["sir"])
    path = adapted.save(tmp_path / "c")
    with pytest.raises(InputError, match=r"could not hold the target prior .* load\(path, target=\.\.\.\) needs it"):
        reprior.load(path)
    assert torch.equal(draw(reprior.load(path, target=log_q)), draw(adapted))
    assert torch.equal(
        draw(reprior.load(path, target=lambda theta: log_q(theta) - 3)), draw(adapted)
    )  # up to a constant
    with pytest.raises(InputError, match="not the target prior that the file was adapted to"):
        reprior.load(path, target=lambda theta: log_q(theta - 0.1))


def test_a_target_in_the_file_is_not_replaced(posterior, tmp_path):
    path = reprior.adapt(posterior, TARGET, "sir", SETTINGS["sir"]).save(tmp_path / "kept")
    with pytest.raises(InputError, match="the file holds its own target prior"):
        reprior.load(path, target=PRIOR)


class Own:
    """A prior of the user's own making."""

    def __init__(self, law: Distribution):
        self.law = law

    def sample(self, shape):
        return self.law.sample(shape)

    def log_prob(self, theta):
        return self.law.log_prob(theta)


def test_prior_of_the_user_s_own_has_to_be_given_again(posterior, tmp_path):
    own = replace(posterior, prior=Own(PRIOR))
    adapted = reprior.adapt(own, Own(TARGET), "sir", SETTINGS["sir"])
    path = adapted.save(tmp_path / "o")
    with pytest.raises(InputError, match=r"could not hold the prior .* load\(path, prior=\.\.\.\) needs it"):
        reprior.load(path)
    with pytest.raises(InputError, match="could not hold the target prior"):
        reprior.load(path, prior=Own(PRIOR))
    assert torch.equal(draw(reprior.load(path, prior=Own(PRIOR), target=Own(TARGET))), draw(adapted))
    with pytest.raises(InputError, match="not the prior that the base in the file was trained under"):
        reprior.load(path, prior=Own(TARGET), target=Own(TARGET))


def test_another_narrow_target_is_told_from_the_one_of_the_file(posterior, tmp_path):
    def box(low: float) -> list:
        return [
            stats.uniform(low, 0.02),
            stats.uniform(low, 0.02),
        ]  # no draw of p that a fingerprint would look at is inside

    path = reprior.adapt(posterior, box(0.3), "sir", SETTINGS["sir"]).save(tmp_path / "box")
    reprior.load(path, target=box(0.3))
    with pytest.raises(InputError, match="not the target prior that the file was adapted to"):
        reprior.load(path, target=box(0.4))


def test_a_prior_that_the_file_holds_is_not_replaced(posterior, tmp_path):
    path = posterior.save(tmp_path / "p")
    with pytest.raises(InputError, match="the file holds the prior that its base was trained under"):
        reprior.load(path, prior=TARGET)


def test_simulations_go_with_it_unless_told(posterior, tmp_path):
    adapted = reprior.adapt(posterior, TARGET, "transport")
    loaded, bare = (reprior.load(adapted.save(tmp_path / str(kept), simulations=kept)) for kept in (True, False))
    assert isinstance(loaded, reprior.AdaptedPosterior)
    assert isinstance(bare, reprior.AdaptedPosterior)
    assert loaded.posterior.simulations is not None
    assert torch.equal(loaded.posterior.simulations.theta, posterior.simulations.theta)
    assert bare.posterior.simulations is None
    assert torch.equal(draw(bare), draw(loaded))


def test_accepted_mass_outside_is_remembered(posterior, tmp_path):
    low, high = torch.tensor([-20.0, -20.0]), torch.tensor([1.5, 20.0])
    box = replace(posterior, prior=priors.as_prior(torch.distributions.Uniform(low, high)))
    adapted = reprior.adapt(box, TARGET, "sir", SETTINGS["sir"], accept_outside=True)
    loaded = reprior.load(adapted.save(tmp_path / "b"))
    assert isinstance(loaded, reprior.AdaptedPosterior)
    assert loaded.warnings == adapted.warnings
    assert "lies outside the prior's support" in loaded.warnings[0]
    assert loaded.change.outside == pytest.approx(adapted.change.outside, abs=0.02)
    assert torch.equal(draw(loaded), draw(adapted))


# --- files that are not what they say --------------------------------------------------------------------------------


def rewritten(adapted, tmp_path, **changes):
    file = io.read(adapted.save(tmp_path / "first"), "adapted")
    meta = {k: v for k, v in {**file.meta, **changes}.items() if v != "gone"}
    return io.write(tmp_path / "second", "adapted", file.tensors, meta)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"method": "telepathy"},
            "holds a method 'telepathy', which is not registered; import the package that registers it. Registered: auto, t",
        ),
        ({"why": "gone"}, "does not hold what its kind 'adapted' needs: 'why'"),
        ({"method_config": {}}, "does not hold what its kind 'adapted' needs: 'settings'"),
        ({"base": {"network": "mlp"}}, "does not hold what its kind 'adapted' needs"),
    ],
)
def test_altered_files_are_refused(changes, message, posterior, tmp_path):
    adapted = reprior.adapt(posterior, TARGET, "nre", LEARNED)
    with pytest.raises(FileFormatError, match=message):
        reprior.load(rewritten(adapted, tmp_path, **changes))


def test_weights_that_do_not_fit_are_refused(posterior, tmp_path):
    adapted = reprior.adapt(posterior, TARGET, "nre", LEARNED)
    config = adapted.method.config()
    with pytest.raises(FileFormatError, match="does not hold what its kind 'adapted' needs"):
        reprior.load(rewritten(adapted, tmp_path, method_config={**config, "dim": 5}))


def test_other_kinds_of_file_are_refused(posterior, tmp_path):
    path = io.write(tmp_path / "other", "checkpoint", {}, {})
    with pytest.raises(FileFormatError, match="holds 'checkpoint', but 'posterior' or 'adapted' is needed here"):
        reprior.load(path)
    with pytest.raises(FileNotFoundError):
        reprior.load(tmp_path / "nothing")
