"""Networks that each hold out their own fold of the simulations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reprior.errors import InputError
from reprior.networks.build import build, rebuild
from reprior.networks.embedding import Embedding
from reprior.networks.ensemble import MLPEnsemble
from reprior.networks.mlp import MLPSettings


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def prepared(axes: int = 0, members: int = 3) -> tuple[MLPEnsemble, tuple[Tensor, ...]]:
    """An ensemble with random weights, and its rows."""
    torch.manual_seed(0)
    settings = MLPSettings(width=8, blocks=1, embedding=Embedding(width=8, features=4), axes=axes, members=members)
    base = build(2, 5, settings)
    assert isinstance(base, MLPEnsemble)
    theta = torch.randn(60, 2, generator=generator(1))
    x = torch.cat([theta, 0.1 * torch.randn(60, 3, generator=generator(2))], 1) + 0.5
    rows = base.prepare(theta, x)
    for member in base.members:
        torch.nn.init.normal_(member.out.weight, std=0.2)
    return base, rows


def test_a_member_does_not_learn_from_its_own_fold():
    base, rows = prepared()
    base.train()
    for k, member in enumerate(base.members):
        own = tuple(t[rows[-1] == k] for t in rows)
        base.zero_grad()
        base.loss_of(own, generator()).mean().backward()
        assert all(p.grad is None or float(p.grad.abs().max()) == 0 for p in member.parameters())
        others = [m for m in base.members if m is not member]
        assert all(float(m.out.weight.grad.abs().max()) > 0 for m in others)


def test_the_held_out_loss_of_a_row_is_that_of_the_member_that_has_not_seen_it():
    base, rows = prepared()
    base.eval()
    found = base.loss_of(rows, generator(4))
    z_in, told, target = base.first.noisy(rows[0], rows[1], generator(4))
    for i in (0, 1, 2, 31):
        member = base.members[i % 3]
        f = member.residual(z_in[i], told[i], member.from_x(member.embedding(rows[2][i]))).detach()
        assert float(found[i]) == pytest.approx(float((f - target[i]).square().mean()), rel=1e-5)


@pytest.mark.parametrize("axes", [0, 2])
def test_the_denoised_mean_is_the_mean_of_the_members(axes):
    base, _ = prepared(axes)
    x, z, s = torch.randn(3, 5, generator=generator(5)), torch.randn(4, 3, 2, generator=generator(6)), torch.tensor(0.5)
    both = base.requires_grad_(False).eval().condition(x)
    each = torch.stack([m.condition(x).mean(z, s) for m in base.members])
    assert both.observations == 3
    torch.testing.assert_close(both.mean(z, s), each.mean(0))
    torch.testing.assert_close(both.select(1).mean(z[:, 1:2], s), each.mean(0)[:, 1:2])
    assert each.std(0).max() > 1e-3
    base.trust(0.0)
    centre, width = base.guess(x)
    gain = width**2 / (width**2 + s**2)  # the denoiser of the guess alone
    torch.testing.assert_close(base.condition(x).mean(z, s), centre + gain * (z - centre), atol=1e-5, rtol=1e-4)


def test_rebuilt_from_its_configuration():
    base, _ = prepared(axes=2)
    again = rebuild(base.config())
    assert isinstance(again, MLPEnsemble)
    again.load_state_dict(base.state_dict())
    x, z, s = torch.randn(3, 5, generator=generator(5)), torch.randn(4, 3, 2, generator=generator(6)), torch.tensor(0.5)
    assert torch.equal(again.eval().condition(x).mean(z, s), base.eval().condition(x).mean(z, s))


def test_rows_are_read_as_if_the_guess_had_not_seen_them():
    """What the network reads of a row, and what is left of it, must not tell its theta more than those of a fresh row do."""
    n, m = 80, 300
    settings = MLPSettings(width=8, blocks=1, axes=2, members=2)
    theta, x = torch.randn(n, 2, generator=generator(1)), torch.randn(n, m, generator=generator(2))  # unrelated
    rows = build(2, m, settings).prepare(theta, x)
    said = rows[2][:, -2:]  # the regression's answer without the row
    assert float((said * theta).mean()) < 0.05  # with the row it would be near 1
    assert float(rows[0].square().mean()) == pytest.approx(
        1 / (1 + (2 / n) ** 0.5), abs=0.05
    )  # the width is a standard error wider


def test_settings_are_checked():
    with pytest.raises(InputError, match="members of 1 or more; got 0 and 0"):
        MLPSettings(members=0)
    with pytest.raises(InputError, match="axes go with an embedding of kind none or dense; got 'set'"):
        MLPSettings(axes=3, embedding=Embedding(kind="set"))
    with pytest.raises(InputError, match="needs axes=0; got 3"):
        build(2, 5, MLPSettings(axes=3), embedding=torch.nn.Linear(5, 2))
