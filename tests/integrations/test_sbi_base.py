"""An sbi estimator as a base: exact conversions, every network of sbi, and what is refused."""

from __future__ import annotations

import importlib
from importlib import metadata

import exact_sbi as exact
import pytest
import torch
from sbi.inference.posteriors.vector_field_posterior import VectorFieldPosterior
from sbi.neural_nets import posterior_flow_nn, posterior_score_nn
from sbi.utils import process_prior
from torch import nn
from torch.distributions import Independent, Normal

import reprior
from reprior.errors import InputError
from reprior.integrations import sbi as integration
from reprior.integrations.sbi import check_version, to_sbi
from reprior.integrations.sbi_noise import noise_of

X = torch.tensor([[0.3, 0.2], [2.0, -1.0], [-1.0, 0.5]])


@pytest.fixture(params=exact.KINDS)
def pair(request):
    """An exact sbi posterior of each process, and the reprior posterior made from it."""
    source = exact.exact_sbi(request.param)
    return source, reprior.from_sbi(source, *exact.simulations())


def expected(posterior, z, s, x):
    scale = posterior.scales.theta
    return scale.forward(exact.denoised(scale.inverse(z), s * posterior.base.unit, x))


def test_time_and_noise_are_those_of_the_estimator(pair):
    estimator = pair[0].vector_field_estimator
    noise = noise_of(estimator)
    t = torch.linspace(max(estimator.t_min, 1e-3), 0.98, 40, dtype=torch.float64)
    s = torch.tensor([noise.level(float(v)) for v in t], dtype=torch.float64)
    again, m = noise.at(s)
    torch.testing.assert_close(again, t, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(m, estimator.mean_t_fn(t)[:, 0], rtol=1e-9, atol=0)
    torch.testing.assert_close(s * m, estimator.std_fn(t)[:, 0], rtol=1e-9, atol=0)


@pytest.mark.parametrize("s", [1e-3, 0.02, 0.3, 1.0, 6.0])
def test_denoised_mean_is_exact(pair, s):
    posterior = pair[1]
    z = (1 + s**2) ** 0.5 * torch.randn(50, 3, 2, generator=torch.Generator().manual_seed(1))
    mean = posterior.condition(X).mean(z, torch.tensor(s))
    # float32: five digits of numbers of size 1 + s.
    torch.testing.assert_close(mean, expected(posterior, z, s, X), rtol=0, atol=1e-5 * (1 + s))


def test_noise_beyond_the_trained_range(pair):
    posterior = pair[1]
    denoiser, lowest = posterior.condition(X[:1]), posterior.base.process.lowest / posterior.base.unit
    z = torch.randn(20, 1, 2, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(denoiser.mean(z, torch.tensor(lowest / 10)), z, rtol=0, atol=10 * lowest**2 + 1e-6)
    # Far out the mean is that of the posterior plus v z / s^2; what is left out is of order v / s_max^2 = .002.
    far = 3 * 12.0 * z
    gap = denoiser.mean(far, torch.tensor(36.0)) - expected(posterior, far, torch.tensor(36.0), X[:1])
    assert float(gap.abs().max()) < 5e-3


def test_broadcasting(pair):
    posterior = pair[1]
    denoiser = posterior.condition(X)
    generator = torch.Generator().manual_seed(2)
    z, s = torch.randn(4, 5, 3, 2, generator=generator), 0.1 + torch.rand(4, 5, 3, 1, generator=generator)
    together = denoiser.mean(z, s)
    assert together.shape == z.shape
    for k in range(3):
        alone = denoiser.select(k).mean(z[:, :, k : k + 1], s[:, :, k : k + 1])
        torch.testing.assert_close(alone[:, :, 0], together[:, :, k], rtol=0, atol=1e-5)
    left_out = denoiser.select(1).mean(z[0, :, 1], s[0, :, 1])  # the axis of one observation left out
    torch.testing.assert_close(left_out, together[0, :, 1], rtol=0, atol=1e-5)
    assert denoiser.select(0).mean(z[0, 0, 0], torch.tensor(0.3)).shape == (2,)
    with pytest.raises(InputError, match="one level per parameter"):
        denoiser.mean(z, torch.ones(2))


def test_gradient_of_the_mean(pair):
    posterior = pair[1]
    z = torch.zeros(1, 1, 2, requires_grad=True)
    s = 0.7
    (row,) = torch.autograd.grad(posterior.condition(X[:1]).mean(z, torch.tensor(s))[..., 0].sum(), z)
    var = exact.moments(X[0])[1] / posterior.base.unit**2
    torch.testing.assert_close(
        row[0, 0], torch.stack([var[0] / (var[0] + s**2), torch.tensor(0.0)]), rtol=1e-4, atol=1e-5
    )


def test_samples_and_log_density(pair):
    posterior = pair[1]
    theta = posterior.sample((2_000,), X[0], seed=0)
    mean, var = exact.moments(X[0])
    # Standard errors 1/sqrt(n) = .022 of a mean and .016 of a sd, in sd: four and a half of them.
    assert float(((theta.mean(0) - mean) / var.sqrt()).abs().max()) < 0.1
    assert float((theta.std(0) / var.sqrt() - 1).abs().max()) < 0.07
    truth = Independent(Normal(mean, var.sqrt()), 1).log_prob(theta[:100])
    torch.testing.assert_close(posterior.log_prob(theta[:100], X[0]), truth, rtol=0, atol=5e-3)


def test_sbi_object_is_left_alone(pair):
    source, posterior = pair
    estimator = source.vector_field_estimator
    assert posterior.base.estimator is not estimator
    assert all(weight.requires_grad for weight in estimator.net.parameters())
    assert not any(weight.requires_grad for weight in posterior.base.parameters())
    assert tuple(estimator.condition_shape) == (2,)


class Summary(nn.Module):
    """An embedding net for images of 3 by 3."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(9, 4)

    def forward(self, x):
        return torch.tanh(self.layer(x.flatten(1)))


def build(process: str, net: str, embedding: nn.Module | None = None, **options) -> VectorFieldPosterior:
    """An sbi posterior with one of sbi's networks, random weights, parameters of scale 2 and x of scale 3."""
    torch.manual_seed(0)
    shape = (200, 3, 3) if embedding is not None else (200, 3)
    theta, x = 5 + 2 * torch.randn(200, 2), 3 * torch.randn(*shape)
    common = {"embedding_net": embedding or nn.Identity(), "hidden_features": 20, "num_layers": 2, **options}
    if process == "flow":
        estimator = posterior_flow_nn(model=net, **common)(theta, x)
    else:
        estimator = posterior_score_nn(model=net, sde_type=process, **common)(theta, x)
    for weight in estimator.net.parameters():  # sbi starts the last layer at zero
        nn.init.normal_(weight, std=0.2)
    posterior = VectorFieldPosterior(estimator, Independent(Normal(5 * torch.ones(2), 2 * torch.ones(2)), 1))
    posterior.simulated = (theta, x)
    return posterior


@pytest.mark.parametrize("net", ["mlp", "ada_mlp", "transformer"])
@pytest.mark.parametrize("process", ["ve", "vp", "subvp", "flow"])
def test_agrees_with_sbis_own_score(process, net):
    embedding = Summary() if net == "mlp" else None
    source = build(process, net, embedding)
    posterior = reprior.from_sbi(source, *source.simulated)
    estimator, base = source.vector_field_estimator.eval(), posterior.base
    x = source.simulated[1][:3]
    t = torch.tensor(0.4)
    m, sigma = (float(f(t.double())) for f in (estimator.mean_t_fn, estimator.std_fn))
    theta_t = 5 * m + 2 * torch.randn(6, 3, 2, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        if process == "flow":  # E[theta_0] = (theta_t - sigma v) / (1 + e), from theta_t = (1-t) theta_0 + sigma eps
            velocity = estimator(theta_t, x, t)
            truth = (theta_t - sigma * velocity) / (1 + estimator.noise_scale)
        else:
            truth = (theta_t + sigma**2 * estimator.score(theta_t, x, t)) / m
    s = torch.tensor(sigma / m / base.unit)
    z = posterior.scales.theta.forward(theta_t / m)
    mean = posterior.condition(x.flatten(1)).mean(z, s)
    torch.testing.assert_close(posterior.scales.theta.inverse(mean), truth, rtol=1e-4, atol=1e-3)


def test_features_are_the_embedding():
    source = build("ve", "mlp", Summary())
    posterior = reprior.from_sbi(source, *source.simulated)
    x = source.simulated[1]
    features = posterior.base.features(posterior.scales.x.forward(x.flatten(1)))
    with torch.no_grad():
        own = source.vector_field_estimator.embedding_net(x)
    torch.testing.assert_close(features, (own - own.mean(0)) / own.std(0, correction=0), rtol=1e-3, atol=1e-3)


def test_composed_standardization():
    source = build("ve", "mlp", compose_standardization=True)
    posterior = reprior.from_sbi(source, *source.simulated)
    estimator = source.vector_field_estimator
    assert posterior.base.unit == 1
    torch.testing.assert_close(posterior.scales.theta.scale, estimator._theta_scale[0])
    t = torch.tensor(0.5)
    z, x = torch.randn(6, 1, 2), source.simulated[1][:1]
    with torch.no_grad():
        truth = z + float(estimator.std_fn(t)) ** 2 * estimator.score(z, x, t)
    mean = posterior.condition(x).mean(z, estimator.std_fn(t)[0])
    torch.testing.assert_close(mean, truth, rtol=1e-4, atol=1e-4)


def test_a_narrow_parameter_keeps_its_width(monkeypatch, tmp_path):
    """Spreads 1 and .04, and a posterior of sd .001 in the second: noise must fall below what the first one needs."""
    monkeypatch.setattr(exact, "SPREAD", (1.0, 0.04))
    monkeypatch.setattr(exact, "C", torch.tensor([0.09, 1e-6]))
    posterior = reprior.from_sbi(exact.exact_sbi("ve"), *exact.simulations())
    x = torch.tensor([0.3, -0.48])
    mean, var = exact.moments(x)
    theta = posterior.sample((4_000,), x, seed=0)
    # Five standard errors, 1 / sqrt(2 n) of an sd, and 2 % for the 32 steps; with a floor of .001 the second was .72.
    assert float((theta.std(0) / var.sqrt() - 1).abs().max()) < 5 / 8_000**0.5 + 0.02
    assert float(((theta.mean(0) - mean) / var.sqrt()).abs().max()) < 5 / 4_000**0.5 + 0.02
    again = reprior.load(posterior.save(tmp_path / "narrow"), estimator=exact.exact_sbi("ve"))
    assert again.base.s_min == posterior.base.s_min < 2e-4


def test_parameters_as_narrow_as_the_lowest_noise_are_told(monkeypatch):
    monkeypatch.setattr(exact, "SPREAD", (0.01, 0.01))
    monkeypatch.setattr(exact, "C", 1e-6)
    with pytest.warns(UserWarning, match=r"lowest noise this posterior was trained with is 0\.\d+ standard deviations"):
        reprior.from_sbi(exact.exact_sbi("flow"), *exact.simulations())


def test_back_to_sbi_with_a_list_of_priors():
    parts = [Normal(torch.tensor([c]), torch.tensor([s])) for c, s in zip(exact.CENTRE, exact.SPREAD, strict=True)]
    source = exact.exact_sbi("ve")
    source.prior = process_prior(parts)[0]
    again = to_sbi(reprior.from_sbi(source, *exact.simulations()))
    theta = torch.tensor([[0.3, -0.2], [1.0, 2.0]])
    torch.testing.assert_close(again.prior.log_prob(theta), exact.prior().log_prob(theta))


def test_back_to_sbi():
    source = build("vp", "mlp", Summary())
    again = to_sbi(reprior.from_sbi(source, *source.simulated))
    theta, x, t = torch.randn(4, 1, 2), source.simulated[1][:1], torch.tensor(0.3)
    with torch.no_grad():
        torch.testing.assert_close(
            again.vector_field_estimator.score(theta, x, t), source.vector_field_estimator.eval().score(theta, x, t)
        )
    with pytest.raises(InputError, match="from_sbi"):
        to_sbi(object())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("version", ["0.26.1", "0.28.0", "1.27.0"])
def test_unsupported_version(version):
    with pytest.raises(ImportError, match=rf"sbi 0.27.x; sbi {version} is installed"):
        check_version(version)
    check_version("0.27.3")


def test_import_under_an_unsupported_version(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "0.28.1")
    with pytest.raises(ImportError, match=r"pip install 'sbi>=0.27,<0.28'"):
        importlib.reload(integration)


def test_warns_of_a_prior_the_simulations_do_not_follow():
    source = exact.exact_sbi("ve")
    source.prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)  # what build_posterior(prior=q) does
    with pytest.warns(UserWarning, match=r"build_posterior\(prior=q\) does not change"):
        reprior.from_sbi(source, *exact.simulations())
    kept = reprior.from_sbi(source, *exact.simulations(), prior=exact.prior())
    assert float(kept.prior.mean[0]) == exact.CENTRE[0]


def test_warns_of_too_little_noise():
    torch.manual_seed(0)
    theta = 100 * torch.randn(300, 2)
    x = theta + torch.randn(300, 2)
    wide = Independent(Normal(torch.zeros(2), torch.tensor([100.0, 100.0])), 1)
    source = VectorFieldPosterior(posterior_score_nn()(theta, x), wide)
    with pytest.warns(UserWarning, match="only 0.092 standard deviations"):
        reprior.from_sbi(source, theta, x)


def test_refuses_what_does_not_fit():
    source = exact.exact_sbi("ve")
    theta, x = exact.simulations()
    with pytest.raises(InputError, match="2 parameters and 2 entries of x"):
        reprior.from_sbi(source, theta[:, :1], x)
    with pytest.raises(InputError, match="from_sbi"):
        reprior.adapt(source, exact.prior())  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="needed; got dict"):
        reprior.from_sbi({}, theta, x)
    posterior = reprior.from_sbi(source, theta, x)
    with pytest.raises(InputError, match="NaN"):
        posterior.sample((5,), torch.tensor([0.1, torch.nan]))
    with pytest.raises(InputError, match="cannot predict"):
        posterior.predict((5,), torch.tensor([0.1, torch.nan]))
