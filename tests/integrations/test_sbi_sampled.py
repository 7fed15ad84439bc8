"""sbi posteriors without a diffusion: resampled, with the same Info, and the advice that NLE and NRE users need."""

from __future__ import annotations

import warnings

import pytest
import torch
from sbi.inference import NLE, NPE, NRE
from torch.distributions import Independent, Normal

import reprior
from reprior.errors import InputError
from reprior.integrations.sbi_sampled import SampledPosterior
from reprior.methods import SIRSettings

P = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
Q = Independent(Normal(torch.tensor([0.4, 0.0]), torch.tensor([0.5, 0.7])), 1)
X = torch.tensor([0.3, -0.2, 0.1])


def simulations():
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(400, 2, generator=generator)
    return theta, torch.cat([theta, theta[:, :1]], 1) + 0.5 * torch.randn(400, 3, generator=generator)


def trained(method, network, **options):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = method(P, network, show_progress_bars=False)
        trainer.append_simulations(*simulations()).train(max_num_epochs=3, training_batch_size=100)
        return trainer.build_posterior(**options)


@pytest.fixture(scope="module")
def npe():
    return trained(NPE, "mdn")


def test_the_posterior_itself_has_the_usual_interface(npe, tmp_path):
    posterior = reprior.from_sbi(npe, *simulations())
    theta, info = posterior.sample(10, X, seed=0, return_info=True, show_progress_bars=False)
    assert theta.shape == (10, 2)
    assert (info.method, info.n) == ("base", 10)
    assert torch.equal(posterior.sample((2, 5), X, seed=0).reshape(10, 2), theta)
    assert posterior.sample_batched(4, torch.stack([X, X]), seed=0).shape == (4, 2, 2)
    with pytest.raises(InputError, match="cannot be written without pickle"):
        posterior.save(tmp_path / "npe")
    with pytest.raises(InputError, match=r"theta needs 2 entries in its last axis; got shape \(4, 3\)"):
        posterior.log_prob(torch.zeros(4, 3), X)


def test_npe_is_resampled(npe):
    adapted = reprior.adapt(npe, Q)
    theta, info = adapted.sample((2_000,), X, seed=0, return_info=True)
    assert theta.shape == (2_000, 2)
    assert info.method == "sir"
    assert 0 < info.relative_ess[0] <= 1
    assert "no diffusion" in info.why
    assert info.warnings == ()
    # The exact answer for this network: its own samples, weighted by q/p.
    torch.manual_seed(1)
    pool = npe.sample((50_000,), x=X, show_progress_bars=False)
    w = torch.softmax(Q.log_prob(pool) - P.log_prob(pool), 0).unsqueeze(1)
    mean = (w * pool).sum(0)
    sd = (w * (pool - mean) ** 2).sum(0).sqrt()
    # Four standard errors of 2,000 draws resampled from 20,000, and of the reference.
    assert float(((theta.mean(0) - mean) / sd).abs().max()) < 4 / 1_500**0.5
    torch.testing.assert_close(adapted.sample((10,), X, seed=5), adapted.sample((10,), X, seed=5))


def test_npe_density_and_evidence(npe):
    adapted = reprior.adapt(npe, Q)
    theta = npe.sample((200,), x=X, show_progress_bars=False)
    ratio, error = adapted.evidence_ratio(X, draws=20_000)
    assert 0 < error < 0.05 * ratio
    value = adapted.log_prob(theta, X, draws=20_000)
    truth = npe.log_prob(theta, x=X) + Q.log_prob(theta) - P.log_prob(theta) - torch.tensor(ratio).log()
    torch.testing.assert_close(value, truth, rtol=0, atol=0.02)  # leakage correction and Z: Monte Carlo
    pair = torch.stack([X, 5 * X])
    both = adapted.sample_batched((1_000,), pair, seed=0)
    assert both.shape == (1_000, 2, 2)
    for k in range(2):  # each observation its own: five standard errors of two means of 1,000, in sd
        alone = adapted.sample((1_000,), pair[k], seed=1)
        assert float(((both[:, k] - alone).mean(0) / alone.std(0)).abs().max()) < 5 * (2 / 1_000) ** 0.5


def test_with_simulations_and_refusals(npe, tmp_path):
    posterior = reprior.from_sbi(npe, *simulations())
    assert isinstance(posterior, SampledPosterior)
    assert len(posterior.simulations) == 400  # pyright: ignore[reportArgumentType]
    adapted = reprior.adapt(posterior, Q)
    with pytest.raises(InputError, match="without pickle"):
        adapted.save(tmp_path / "npe")
    with pytest.raises(InputError, match="needs a diffusion posterior"):
        reprior.adapt(posterior, Q, method="nre")
    with pytest.raises(InputError, match=r"x needs shape \(3,\)"):
        adapted.sample((5,), torch.zeros(2))
    with pytest.raises(InputError, match="build_posterior"):
        reprior.adapt(NPE(prior=P), Q)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("method", "network"), [(NLE, "mdn"), (NRE, "mlp")], ids=["NLE", "NRE"])
def test_likelihoods_and_ratios_say_what_is_exact(method, network):
    source = trained(method, network, sample_with="rejection")
    adapted = reprior.adapt(source, Q, settings=SIRSettings(pool=400))
    state = torch.get_rng_state()
    theta, info = adapted.sample((100,), X, seed=0, return_info=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert theta.shape == (100, 2)
    assert bool(torch.isfinite(theta).all())
    assert "build_posterior(prior=q) is exact" in info.why
    assert any("build_posterior(prior=q)" in text for text in info.warnings)
    with pytest.raises(InputError, match="up to a constant"):
        adapted.log_prob(theta, X, draws=50)


def test_collapse_is_said(npe):
    far = Independent(Normal(torch.tensor([4.0, 4.0]), torch.tensor([0.2, 0.2])), 1)
    _, info = reprior.adapt(npe, far).sample((500,), X, seed=0, return_info=True)
    assert info.figures["duplicates"][0] > 400
    assert any("relative ESS" in text for text in info.warnings)


def test_npe_is_diagnosed(npe):
    from reprior.diagnostics import DiagnoseSettings, diagnose

    adapted = reprior.adapt(reprior.from_sbi(npe, *simulations()), Q)
    report = diagnose(adapted, X, settings=DiagnoseSettings(draws=500, pool=1_000, pairs=150, ranks=20))
    assert report.verdict in ("ok", "caution", "do not trust")
    assert report["ess"].outcome != "skipped"
    assert report["sbc"].outcome != "skipped"
    assert report["agreement"].outcome == "skipped"  # no second method for what is no diffusion
