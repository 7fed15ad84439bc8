"""Posteriors from sbi through a file: sbi's networks come back from plain data, the user's own are asked for."""

from __future__ import annotations

import pytest
import torch
from sbi.inference.posteriors.vector_field_posterior import VectorFieldPosterior
from sbi.neural_nets import posterior_flow_nn, posterior_score_nn
from sbi.neural_nets.embedding_nets import FCEmbedding
from torch import nn
from torch.distributions import Independent, MultivariateNormal, Normal

import reprior
from reprior.errors import FileFormatError, InputError
from reprior.methods import RatioSettings

P = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
Q = MultivariateNormal(torch.tensor([0.5, 0.0]), torch.tensor([[0.5, 0.1], [0.1, 0.5]]))
SIZES = {"hidden_features": 20, "num_layers": 2}


def simulations():
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(500, 2, generator=generator)
    return theta, torch.cat([theta, theta[:, :1] ** 2], 1) + 0.3 * torch.randn(500, 3, generator=generator)


def untrained(builder) -> VectorFieldPosterior:
    """An sbi posterior whose network has random weights."""
    torch.manual_seed(1)
    estimator = builder(*simulations())
    for weight in estimator.net.parameters():
        nn.init.normal_(weight, std=0.05)
    return VectorFieldPosterior(estimator, P)


def same_draws(one, other) -> None:
    x = simulations()[1][0]
    torch.testing.assert_close(one.sample((50,), x, seed=3), other.sample((50,), x, seed=3), rtol=0, atol=0)


BUILDERS = {
    "mlp": posterior_score_nn(model="mlp", **SIZES),
    "mlp with other choices": posterior_score_nn(
        model="mlp", sde_type="vp", layer_norm=False, activation=nn.Tanh, beta_max=8.0, z_score_x="none", **SIZES
    ),
    "ada_mlp": posterior_score_nn(model="ada_mlp", sde_type="subvp", condition_emb_dim=12, **SIZES),
    "transformer": posterior_score_nn(model="transformer", num_heads=4, **SIZES),
    "structured": posterior_score_nn(z_score_theta="structured", z_score_x="structured", sigma_max=20.0, **SIZES),
    "composed": posterior_score_nn(compose_standardization=True, **SIZES),
    "flow": posterior_flow_nn(gaussian_baseline=True, **SIZES),
    "flow, ada_mlp": posterior_flow_nn(model="ada_mlp", time_emb_type="random_fourier", **SIZES),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_sbis_networks_come_back(name, tmp_path):
    posterior = reprior.from_sbi(untrained(BUILDERS[name]), *simulations())
    path = posterior.save(tmp_path / "posterior")
    again = reprior.load(path)
    same_draws(posterior, again)
    assert again.simulations is not None
    assert len(again.simulations) == 500


def test_adapted_posterior_comes_back(tmp_path):
    posterior = reprior.from_sbi(untrained(BUILDERS["mlp"]), *simulations())
    adapted = reprior.adapt(posterior, Q, method="plug_in")
    again = reprior.load(adapted.save(tmp_path / "adapted"))
    assert again.method.name == "plug_in"
    same_draws(adapted, again)


def test_learned_ratio_comes_back(tmp_path):
    """The ratio network sees sbi's embedding of x, which the file keeps the scales of."""
    own = FCEmbedding(3, output_dim=4, num_hiddens=8)
    posterior = reprior.from_sbi(untrained(posterior_score_nn(embedding_net=own, **SIZES)), *simulations())
    settings = RatioSettings(
        observations=20, draws=16, training=reprior.Training(steps=20, batch=64, evaluate_every=10)
    )
    adapted = reprior.adapt(posterior, Q, method="nre", settings=settings)
    assert adapted.method.config()["x_features"] == 4
    same_draws(adapted, reprior.load(adapted.save(tmp_path / "adapted"), embedding=own))


def test_embedding_net_is_asked_for(tmp_path):
    own = FCEmbedding(3, output_dim=4, num_hiddens=8)
    posterior = reprior.from_sbi(untrained(posterior_score_nn(embedding_net=own, **SIZES)), *simulations())
    path = posterior.save(tmp_path / "posterior")
    with pytest.raises(InputError, match=r"FCEmbedding.*embedding=module"):
        reprior.load(path)
    fresh = FCEmbedding(3, output_dim=4, num_hiddens=8)  # other weights: those of the file count
    same_draws(posterior, reprior.load(path, embedding=fresh))
    with pytest.raises(FileFormatError):
        reprior.load(path, embedding=FCEmbedding(3, output_dim=4, num_hiddens=9))


class OwnNet(nn.Module):
    """A vector field that is not one of sbi's."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2 + 3 + 1, 2)

    def forward(self, input, condition, t):
        return self.layer(torch.cat([input, condition, t[:, None]], -1))


def test_other_networks_are_asked_for(tmp_path):
    source = untrained(posterior_score_nn(model=OwnNet()))
    posterior = reprior.from_sbi(source, *simulations())
    path = posterior.save(tmp_path / "posterior")
    with pytest.raises(InputError, match=r"not one of sbi's own.*estimator="):
        reprior.load(path)
    same_draws(posterior, reprior.load(path, estimator=untrained(posterior_score_nn(model=OwnNet()))))
    same_draws(posterior, reprior.load(path, estimator=source.vector_field_estimator))
    with pytest.raises(InputError, match="got dict"):
        reprior.load(path, estimator={})


def test_a_change_in_sbi_is_not_read_wrongly(tmp_path):
    """What the plain data does not say is found by comparing: here a network whose forward was changed."""
    source = untrained(BUILDERS["mlp"])
    source.vector_field_estimator.net.activation = nn.LeakyReLU(0.3)  # not the default slope
    posterior = reprior.from_sbi(source, *simulations())
    with pytest.raises(InputError, match="estimator="):
        reprior.load(posterior.save(tmp_path / "posterior"))


class Gaps(nn.Module):
    """An embedding net that takes missing entries."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x):
        return self.linear(x.nan_to_num(0.0))


def test_simulations_with_gaps_are_attached_again(tmp_path):
    theta, x = simulations()
    x[::3, 0] = torch.nan
    source = untrained(posterior_score_nn(embedding_net=Gaps(), z_score_x="none", **SIZES))
    posterior = reprior.from_sbi(source, theta, x)
    again = reprior.load(posterior.save(tmp_path / "gaps", simulations=False), embedding=Gaps())
    assert len(again.with_simulations(theta, x).simulations) == len(posterior.simulations) == 500
