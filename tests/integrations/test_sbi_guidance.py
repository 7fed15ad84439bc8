"""The guidance method "density_ratio" inside sbi: the right distribution, and each of sbi's traps."""

from __future__ import annotations

import copy
from dataclasses import replace

import exact_sbi as exact
import pytest
import scipy.stats
import torch
from sbi.inference.potentials.vector_field_adaptor import get_guidance_method
from sbi.utils import BoxUniform
from torch.distributions import Independent, Normal

import reprior
from reprior.errors import InputError
from reprior.methods.transport import Transport

X = torch.tensor([[0.3, 0.2]])
Q_MEAN, Q_SD = torch.tensor([1.6, 0.0]), torch.tensor([0.7, 0.7])
Q = Independent(Normal(Q_MEAN, Q_SD), 1)


def target(x: torch.Tensor, observations: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and sd of q(theta | x_1, ..., x_N), x their mean, in closed form."""
    precision = 1 / Q_SD**2 + observations / exact.C
    return (Q_MEAN / Q_SD**2 + observations * x / exact.C) / precision, precision**-0.5


def adapted(kind: str, q=Q, method: str = "transport", **options):
    source = exact.exact_sbi(kind, **options)
    return source, reprior.adapt(reprior.from_sbi(source, *exact.simulations()), q, method=method)


def guided(source, changed, n=1_000, x=X, steps=150, **options):
    torch.manual_seed(0)
    return source.sample(
        (n,),
        x=x,
        guidance_method="density_ratio",
        guidance_params=changed.sbi_params(),
        steps=steps,
        show_progress_bars=False,
        **options,
    )


def close(theta, mean, sd, slack=0.05) -> None:
    # Four standard errors of a mean and of a sd with n samples, and a slack for sbi's 150 Euler-Maruyama steps.
    n = len(theta)
    assert float(((theta.mean(0) - mean) / sd).abs().max()) < 4 / n**0.5 + slack
    assert float((theta.std(0) / sd - 1).abs().max()) < 4 / (2 * n) ** 0.5 + slack


@pytest.mark.parametrize("kind", exact.KINDS)
@pytest.mark.parametrize("t", [0.05, 0.3, 0.8, 1.0])
def test_score_is_exact(kind, t):
    """q/p is isotropic Gaussian here, which transport changes exactly, so the score has no error but rounding."""
    source, changed = adapted(kind)
    estimator = source.vector_field_estimator
    cls, config = get_guidance_method("density_ratio")
    scores = cls(estimator, source.prior, config=config(**changed.sbi_params()))
    time = torch.tensor(t)
    m = 0.0 if kind == "flow" and t == 1 else float(estimator.mean_t_fn(time))  # sbi clips the flow's at t = .99
    sigma, (mean, sd) = float(estimator.std_fn(time)), target(X[0])
    theta_t = m * mean + (m**2 * sd**2 + sigma**2).sqrt() * torch.randn(
        20, 1, 2, generator=torch.Generator().manual_seed(0)
    )
    truth = -(theta_t - m * mean) / (m**2 * sd**2 + sigma**2)
    torch.testing.assert_close(scores(theta_t, X, time), truth, rtol=1e-3, atol=2e-3 / sigma)


@pytest.mark.parametrize("kind", exact.KINDS)
def test_distribution_by_sbis_sampler(kind):
    close(guided(*adapted(kind), sample_with="sde"), *target(X[0]))


@pytest.mark.parametrize("method", ["plug_in", "rejuvenate", "sir"])
def test_every_kind_of_method(method):
    """Methods with and without a guided denoiser give the same distribution; plug-in values lag by some .02 sd."""
    close(guided(*adapted("ve", method=method)), *target(X[0]), slack=0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda mean, sd: scipy.stats.multivariate_normal(mean, sd**2),  # its quadratic is known
        lambda mean, sd: lambda theta: scipy.stats.norm(mean, sd).logpdf(theta).sum(-1),
    ],
    ids=["scipy", "function"],
)
def test_target_priors_without_a_gradient(make):
    q_mean, q_sd = torch.tensor([1.3, 0.3]), torch.tensor([0.15, 0.4])
    precision = 1 / q_sd**2 + 1 / exact.C
    mean = (q_mean / q_sd**2 + X[0] / exact.C) / precision
    close(guided(*adapted("ve", make(q_mean.numpy(), q_sd.numpy()), method="auto")), mean, precision**-0.5)


def test_edges_of_a_bounded_target_are_not_emptied():
    low, high = 0.2, 0.9
    source, changed = adapted("ve", BoxUniform(torch.tensor([low, -3.0]), torch.tensor([high, 0.4])), method="auto")
    theta = guided(source, changed, n=4_000)[:, 0]
    mean, var = exact.moments(X[0])
    normal = scipy.stats.norm(float(mean[0]), float(var[0]) ** 0.5)
    cdf = lambda v: (normal.cdf(v) - normal.cdf(low)) / (normal.cdf(high) - normal.cdf(low))  # noqa: E731
    assert float(theta.min()) >= low
    assert scipy.stats.kstest(theta.numpy(), cdf).statistic < 2.2 / 4_000**0.5  # .042 where the edges are emptied
    guide = changed.sbi_params()["guide"]
    with pytest.raises(InputError, match="method 'rejuvenate' works on draws and has no score at this x"):
        guide.score(torch.zeros(1, 1, 2), X, 0.5)


def test_prepared_once_and_not_trained(monkeypatch):
    source, changed = adapted("ve")
    calls = []
    made = Transport.guide
    monkeypatch.setattr(Transport, "guide", lambda *a: calls.append(1) or made(*a))
    guided(source, changed, n=10, steps=30)
    assert len(calls) == 1


@pytest.mark.parametrize("kind", ["flow", "ve"])
def test_ode_sampling_is_not_ignored(kind):
    """sbi alone would give p(theta | x), whose mean is 0.9 sd away."""
    source, changed = adapted(kind, sample_with="ode")
    theta = guided(source, changed)
    close(theta, *target(X[0]))
    assert guided(source, changed, n=1).shape == (1, 2)


def test_rejection_uses_the_support_of_q():
    box = BoxUniform(torch.tensor([0.2, -3.0]), torch.tensor([0.9, 0.4]))
    source, changed = adapted("ve", box, method="auto")
    theta = guided(source, changed, n=300, steps=60)
    assert theta.shape == (300, 2)
    assert bool(torch.isfinite(box.log_prob(theta)).all())
    assert isinstance(source.prior, Independent)  # sbi's object is as it was


def test_iid_observations_apply_r_once():
    source, changed = adapted("vp")
    x = torch.tensor([[0.2, 0.1], [0.5, -0.2], [0.3, 0.3]])
    theta = guided(source, changed, n=300, x=x, steps=40, iid_method="jac_gauss")
    once = target(x.mean(0), observations=3)
    # r at each of the three observations would put the mean .89 sd away.
    precision = 3 / Q_SD**2 - 2 / torch.tensor(exact.SPREAD) ** 2 + 3 / exact.C
    thrice = (3 * Q_MEAN / Q_SD**2 - 2 * torch.tensor(exact.CENTRE) / torch.tensor(exact.SPREAD) ** 2) / precision
    thrice = thrice + 3 * x.mean(0) / exact.C / precision
    assert float(((thrice - once[0]) / once[1]).abs().max()) > 0.8
    assert float(((theta.mean(0) - once[0]) / once[1]).abs().max()) < 0.4


def test_iid_warns_of_few_effective_samples():
    far = Independent(Normal(torch.tensor([3.0, 2.0]), torch.tensor([0.3, 0.3])), 1)
    source, changed = adapted("vp", far, method="plug_in")
    with pytest.warns(UserWarning, match="r was applied once"):
        guided(source, changed, n=100, x=torch.tensor([[0.2, 0.1], [0.5, -0.2]]), steps=40, iid_method="jac_gauss")


def test_methods_that_need_corrections_say_so():
    class Corrected(Transport):
        corrections = 8

    _, changed = adapted("ve")
    changed = replace(changed, method=Corrected(changed.method.problem))
    with pytest.warns(UserWarning, match="needs 8 Langevin corrections"):
        changed.sbi_params()


def test_guidance_refuses_several_observations():
    source, changed = adapted("ve")
    cls, config = get_guidance_method("density_ratio")
    scores = cls(source.vector_field_estimator, source.prior, config=config(**changed.sbi_params()))
    with pytest.raises(InputError, match="at each of them"):
        scores(torch.zeros(3, 1, 2), torch.zeros(2, 2), torch.tensor(0.5))
    assert isinstance(copy.copy(scores), cls)  # sbi's own adaptations recurse here
    assert scores.t_max == source.vector_field_estimator.t_max


def test_other_calls_are_untouched():
    source, changed = adapted("ve")
    draws = []
    for _ in range(2):
        torch.manual_seed(0)
        draws.append(source.sample((20,), x=X, steps=20, show_progress_bars=False))
        guided(source, changed, n=5, steps=5)
    torch.testing.assert_close(*draws, rtol=0, atol=0)
    mean, _ = exact.moments(X[0])
    torch.manual_seed(0)
    plain = source.sample((500,), x=X, steps=100, show_progress_bars=False)
    assert float((plain.mean(0) - mean).abs().max()) < 0.1


def test_refuses_the_wrong_parameters():
    source, changed = adapted("ve")
    with pytest.raises(InputError, match="another posterior"):
        guided(exact.exact_sbi("ve"), changed)  # another network, with other weights
    with pytest.raises(InputError, match="sbi_params"):
        source.sample((5,), x=X, guidance_method="density_ratio", guidance_params={"guide": 3})
    from exact import gaussian_posterior

    own = reprior.adapt(gaussian_posterior(2)[0], Independent(Normal(torch.zeros(2), 0.5 * torch.ones(2)), 1))
    with pytest.raises(InputError, match="came from sbi"):
        own.sbi_params()
