"""Errors in units of what is to be expected of them: the best weight in closed form, what it reads, what it gains."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from reprior.errors import InputError
from reprior.networks.difficulty import Difficulty
from reprior.networks.masks import MaskMix
from reprior.networks.simformer import PAPER_SIMFORMER, SimformerBase, SimformerSettings

SMALL = SimformerSettings(layers=1, width=32, heads=2, masks=MaskMix(1, 0, 0, 0, 0), absent=0.0)


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_the_best_u_is_the_log_of_the_mean_error():
    error = normal(1, 400).square() * 7
    u = torch.zeros(1, 1, requires_grad=True)
    with torch.no_grad():
        u += error.mean().log()
    (slope,) = torch.autograd.grad(Difficulty(2).weigh(error, u.expand_as(error)).mean(), u)
    assert abs(float(slope)) < 1e-5
    worse = [float(Difficulty(2).weigh(error, (u + step).expand_as(error)).mean()) for step in (-0.1, 0.1)]
    assert min(worse) > float(Difficulty(2).weigh(error, u.expand_as(error)).mean())


def test_it_is_zero_at_first_and_reads_what_is_given_alone():
    torch.manual_seed(0)
    net = Difficulty(5)
    values, given, noise = normal(3, 5), torch.tensor([False, True, True, False, True]), normal(3, 4, seed=2)
    assert bool((net(values, given, noise) == 0).all())
    torch.nn.init.normal_(net.rest[-1].weight)
    u = net(values, given, noise)
    assert u.shape == (3, 4)
    hidden = torch.where(given, values, float("nan"))
    torch.testing.assert_close(net(hidden, given, noise), u)
    torch.testing.assert_close(net(values + 9 * ~given, given, noise), u)
    assert float((net(values + 0.5 * given, given, noise) - u).abs().min()) > 1e-4
    gone = values.clone()
    gone[0, 1] = float("nan")  # a missing entry of this row is not a zero
    assert (
        float(
            (net(gone, given, noise)[0] - net(torch.where(torch.isnan(gone), 0.0, gone), given, noise)[0]).abs().min()
        )
        > 1e-4
    )


def uneven(n: int, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """theta given x = (place, size): N(size sin(3 place), (0.1 size)^2), with sizes 0.05 and 1."""
    place = 2 * torch.rand(n, generator=g) - 1
    size = torch.where(torch.rand(n, generator=g) < 0.5, 0.05, 1.0)
    theta = size * (3 * place).sin() + 0.1 * size * torch.randn(n, generator=g)
    return theta.unsqueeze(1), torch.stack([place, 4 * (size - 0.5)], 1), size


def wrong_means(weigh: bool) -> tuple[float, float]:
    """The error of E[theta | x] after a short training, in units of the size: for small sizes and for large ones."""
    g = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    base = SimformerBase(1, 2, replace(SMALL, weigh=weigh))
    base.prepare(*uneven(20_000, g)[:2])
    optimiser = torch.optim.Adam(base.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 600)
    for _ in range(600):
        theta, x, _ = uneven(96, g)
        loss = base.loss(theta, x, g).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    _, x, size = uneven(1_000, g)
    with torch.no_grad():  # at this noise the state tells nothing: the denoised mean is E[theta | x]
        mean = base.condition(x).mean(torch.zeros(1, 1_000, 1), torch.tensor([30.0]))[0, :, 0]
    error = (mean / size - (3 * x[:, 0]).sin()).abs()
    return float(error[size < 0.5].mean()), float(error[size > 0.5].mean())


def test_narrow_posteriors_are_learned_beside_wide_ones():
    plain, weighed = wrong_means(False), wrong_means(True)
    assert weighed[0] < 0.5 * plain[0], (plain, weighed)  # where theta is narrow
    assert weighed[1] < 1.5 * plain[1] + 0.02, (plain, weighed)  # and not at the cost of the wide ones


def test_the_plain_loss_of_the_paper_is_not_weighed():
    with pytest.raises(InputError, match="weigh=True needs output='mean'"):
        replace(PAPER_SIMFORMER, weigh=True)
