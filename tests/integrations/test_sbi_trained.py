"""From a trainer of sbi to an adapted posterior, as a user goes: embedding net, z-scoring, get_simulations, a file, and back."""

from __future__ import annotations

import warnings

import pytest
import torch
from sbi.inference import FMPE, NPSE
from sbi.neural_nets import posterior_flow_nn, posterior_score_nn
from sbi.neural_nets.embedding_nets import FCEmbedding
from torch.distributions import Independent, Normal

import reprior
from reprior.errors import InputError
from reprior.methods import RejuvenateSettings

P = Independent(Normal(torch.tensor([3.0, -2.0]), torch.tensor([1.5, 0.8])), 1)
Q = Independent(Normal(torch.tensor([2.5, -1.5]), torch.tensor([0.8, 0.6])), 1)
X = torch.tensor([3.2, -2.1, 1.0, 5.0, 3.0])
N = 2_000
CLOSE = 4 * (2 / N) ** 0.5  # four standard errors of a difference of two means, in sd


def embedding() -> FCEmbedding:
    return FCEmbedding(5, output_dim=3, num_layers=2, num_hiddens=10)


@pytest.fixture(scope="module", params=["subvp", "flow"])
def trained(request):
    """A trainer and its posterior: a few seconds of training, so far from the truth. The network is its own reference."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        theta = P.sample((600,))
        mix = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0], [1.0, 0.0]])
        x = theta @ mix.T + torch.randn(600, 5)
        options = {"embedding_net": embedding(), "hidden_features": 20, "num_layers": 2, "z_score_x": "structured"}
        if request.param == "flow":
            trainer = FMPE(P, posterior_flow_nn(**options), show_progress_bars=False)
        else:
            network = posterior_score_nn(sde_type=request.param, z_score_theta="independent", **options)
            trainer = NPSE(P, network, sde_type=request.param, show_progress_bars=False)
        trainer.append_simulations(theta, x).train(max_num_epochs=25, training_batch_size=100, learning_rate=3e-3)
        return trainer, trainer.build_posterior()


@pytest.fixture(scope="module")
def posterior(trained):
    theta, x, _ = trained[0].get_simulations()
    return reprior.from_sbi(trained[1], theta, x)


@pytest.fixture(scope="module")
def adapted(posterior):
    return reprior.adapt(posterior, Q, method="rejuvenate", settings=RejuvenateSettings(pool=4_000))


@pytest.fixture(scope="module")
def reference(posterior):
    """Mean and sd of the network's posterior under p, and under q by weights."""
    theta = posterior.sample((20_000,), X, seed=5)
    w = torch.softmax(Q.log_prob(theta) - P.log_prob(theta), 0).unsqueeze(1)
    mean = (w * theta).sum(0)
    return (theta.mean(0), theta.std(0)), (mean, (w * (theta - mean) ** 2).sum(0).sqrt())


def off(theta, moments):
    return float(((theta.mean(0) - moments[0]) / moments[1]).abs().max())


def test_same_posterior_as_sbi(trained, posterior, reference):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        own = trained[1].sample((N,), x=X, sample_with="ode", show_progress_bars=False)
    assert off(own, reference[0]) < CLOSE
    assert float((own.std(0) / reference[0][1] - 1).abs().max()) < CLOSE
    theta = own[:40]
    gap = posterior.log_prob(theta, X) - trained[1].log_prob(theta, x=X)
    assert float(gap.abs().mean()) < 0.08  # two integrators: .026 (subvp) and .014 (flow) were measured


def test_adapted_here_and_inside_sbi(trained, adapted, reference):
    theta, info = adapted.sample((N,), X, seed=0, return_info=True)
    assert info.relative_ess[0] > 0.1
    # A hardly trained network is no exact score, which guidance and weights feel differently: .15 more.
    assert off(theta, reference[1]) < CLOSE + 0.15
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inside = trained[1].sample(
            (N,),
            x=X,
            sample_with="ode",
            guidance_method="density_ratio",
            guidance_params=adapted.sbi_params(),
            show_progress_bars=False,
        )
    assert off(inside, reference[1]) < CLOSE + 0.15
    assert off(inside, reference[0]) > 0.3  # not the posterior under p


def test_file_asks_for_the_embedding_net(adapted, tmp_path):
    path = adapted.save(tmp_path / "adapted")
    with pytest.raises(InputError, match=r"embedding net \(FCEmbedding\)"):
        reprior.load(path)
    again = reprior.load(path, embedding=embedding())
    torch.testing.assert_close(again.sample((50,), X, seed=1), adapted.sample((50,), X, seed=1), rtol=0, atol=0)
