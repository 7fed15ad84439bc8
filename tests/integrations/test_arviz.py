"""The ArviZ export holds the right draws under the right names."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from exact import exact_posterior, gaussian_posterior
from torch.distributions import MultivariateNormal

import reprior
from reprior.errors import InputError

pytest.importorskip("arviz_base", reason="arviz-base needs Python 3.11")
from reprior.integrations.arviz import to_arviz

X = torch.tensor([0.6, -0.4])
Q = MultivariateNormal(torch.tensor([0.8, 0.0]), torch.diag(torch.tensor([0.3, 0.6])))


@pytest.fixture(scope="module")
def adapted():
    posterior, _ = gaussian_posterior(dim=2, c=0.3)
    return reprior.adapt(posterior, Q)


def test_groups_hold_the_four_laws(adapted):
    tree = to_arviz(adapted, X, draws=4_000, seed=3)
    assert set(tree.children) == {
        "posterior",
        "base_posterior",
        "prior",
        "target_prior",
        "sample_stats",
        "observed_data",
    }
    prior = adapted.posterior.prior
    laws = {
        "posterior": exact_posterior(Q, X, 0.3),
        "base_posterior": exact_posterior(prior, X, 0.3),
        "prior": prior,
        "target_prior": Q,
    }
    for group, law in laws.items():
        for i in range(2):
            values = tree[group][f"theta_{i + 1}"]
            assert values.dims == ("chain", "draw")
            assert values.shape == (1, 4_000)
            sd = float(law.covariance_matrix[i, i].sqrt())
            # Standard errors: sd / sqrt(4000) of the mean, sd / sqrt(8000) of the sd; five of them.
            assert abs(float(values.mean()) - float(law.mean[i])) < 5 * sd / 4_000**0.5
            assert abs(float(values.std()) - sd) < 5 * sd / 8_000**0.5
    assert tree["observed_data"]["x"].values == pytest.approx(X.numpy())
    assert tree.attrs["method"] == adapted.method.name


def test_a_parameter_may_be_called_x(adapted):
    named = replace(adapted, posterior=replace(adapted.posterior, parameters=("x", "y")))
    tree = to_arviz(named, X, draws=50)
    assert tree["posterior"]["x"].shape == (1, 50)
    assert tree["observed_data"]["x_observed"].values == pytest.approx(X.numpy())


def test_log_r_belongs_to_the_draws(adapted):
    samples = adapted.sample((300,), X, seed=1)
    tree = to_arviz(adapted, X, draws=300, samples=samples)
    assert tree["posterior"]["theta_2"].values[0] == pytest.approx(samples[:, 1].numpy())
    assert tree["sample_stats"]["log_r"].values[0] == pytest.approx(adapted.log_r(samples).numpy(), abs=1e-5)


def test_tree_can_be_written_and_read(adapted, tmp_path):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf", reason="writing netCDF needs h5netcdf or netCDF4")
    tree = to_arviz(adapted, X, draws=50)
    tree.to_netcdf(tmp_path / "tree.nc", engine="h5netcdf")
    back = xarray.open_datatree(tmp_path / "tree.nc", engine="h5netcdf")
    assert back["posterior"]["theta_1"].values == pytest.approx(tree["posterior"]["theta_1"].values)


def test_bad_arguments_are_named(adapted):
    with pytest.raises(InputError, match="at least 1; got 0"):
        to_arviz(adapted, X, draws=0)
    with pytest.raises(InputError, match=r"\(n, 2\); got \(5, 3\)"):
        to_arviz(adapted, X, samples=torch.zeros(5, 3))


def test_method_gives_the_same_tree(adapted):
    one, two = adapted.to_arviz(X, draws=50, seed=3), to_arviz(adapted, X, draws=50, seed=3)
    assert one["posterior"].equals(two["posterior"])
