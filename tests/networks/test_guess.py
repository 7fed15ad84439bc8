"""The Gaussian guess: a known mean and width recovered, a regression where there is nothing more to learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from reprior.errors import InputError
from reprior.networks.embedding import Embedding, Moments, Sorted, build_embedding, summary_of
from reprior.networks.guess import NARROWEST, Guess


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussian_guess(dim: int, x_dim: int) -> Guess:
    torch.manual_seed(0)
    settings = Embedding(width=32, features=16)
    return Guess(dim, summary_of(settings, True), x_dim, build_embedding(settings, x_dim), 16)


def test_mean_and_width_that_depend_on_x_are_found():
    x = 4 * torch.rand(20_000, 2, generator=generator(1)) - 2
    theta = torch.sin(2 * x[:, :1]) + x[:, 1:].exp() / 10 * torch.randn(20_000, 1, generator=generator(2))
    guess = gaussian_guess(1, 2)
    guess.fit(theta, x, 1_000)
    asked = 3.6 * torch.rand(500, 2, generator=generator(3)) - 1.8
    with torch.no_grad():
        centre, width = guess(asked)
    truth = asked[:, 1].exp() / 10
    # A Gaussian fit to the about 20,000 / 20 rows near a point would have errors of 0.03 widths and 0.02 in log width.
    # A network that ignored the widths would be off by several of the smallest ones.
    assert float(((centre[:, 0] - torch.sin(2 * asked[:, 0])) / truth).square().mean().sqrt()) < 0.3
    assert float((width[:, 0] / truth).log().square().mean().sqrt()) < 0.2


def test_what_is_left_of_held_out_rows_has_unit_variance():
    theta, x = torch.randn(8_000, 2, generator=generator(1)), torch.randn(8_000, 3, generator=generator(2))
    theta[:, 0] += 2 * x[:, 0]
    guess = gaussian_guess(2, 3)
    guess.fit(theta, x, 1_000)
    more_x = torch.randn(8_000, 3, generator=generator(4))
    more = torch.randn(8_000, 2, generator=generator(5))
    more[:, 0] += 2 * more_x[:, 0]
    centre, width = guess(more_x)
    # 400 rows set the scale: its standard error is 1 / sqrt(800) = 0.035.
    assert ((more - centre) / width).std(0).tolist() == pytest.approx([1, 1], abs=0.12)


def test_few_simulations_stay_with_the_regression():
    theta, x = torch.randn(120, 1, generator=generator(1)), torch.randn(120, 4, generator=generator(2))
    guess = gaussian_guess(1, 4)
    guess.fit(theta, x, 1_000)
    asked = torch.randn(200, 4, generator=generator(3))
    centre, width = guess(asked)
    # Nothing is to be learned: a network that fitted the noise would leave widths near zero and centres far out.
    assert float(width.min()) > 0.3
    assert float(centre.abs().max()) < 1.5


def test_width_has_a_floor():
    x = torch.randn(400, 1, generator=generator(1))
    guess = gaussian_guess(1, 1)
    guess.fit(x, x, 200)
    assert float(guess(x)[1].min()) >= NARROWEST


def test_fit_is_repeatable_and_fixed():
    theta, x = torch.randn(300, 1, generator=generator(1)), torch.randn(300, 2, generator=generator(2))
    one, two = gaussian_guess(1, 2), gaussian_guess(1, 2)
    one.fit(theta, x, 100)
    two.fit(theta, x, 100)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    assert not any(p.requires_grad for p in one.parameters())


def test_moments_of_a_set():
    x = torch.randn(5, 12, generator=generator(1))
    found = Moments(3, 3)(x)
    for row, items in zip(found, x.reshape(5, 4, 3).numpy(), strict=True):
        correlation = np.corrcoef(items.T)
        expected = [*items.mean(0), *np.log(items.std(0)), correlation[0, 1], correlation[0, 2], correlation[1, 2]]
        np.testing.assert_allclose(row, expected, atol=0.02)  # 1e-3 is added to each standard deviation


def test_order_of_the_items_of_a_set_does_not_matter():
    torch.manual_seed(0)
    network = build_embedding(Embedding(kind="set", item=2, width=16, features=8), 8)
    x = torch.randn(6, 8, generator=generator(1))
    turned = x.reshape(6, 4, 2)[:, [2, 0, 3, 1]].reshape(6, 8)
    assert network(x).shape == (6, 8)
    assert torch.allclose(network(x), network(turned), atol=1e-6)
    assert not torch.allclose(network(x), network(x.roll(1, dims=1)), atol=1e-3)


def test_a_peak_knows_how_far_a_window_is_from_the_highest_point_but_not_where_that_stands():
    torch.manual_seed(0)
    x = torch.zeros(4, 40)
    for row, (top, low) in enumerate([(15, 20), (22, 27), (22, 17), (22, 30)]):
        x[row, top], x[row, low] = 3.0, -2.0
    single = build_embedding(Embedding(kind="peak", item=1, width=16, features=8), 40)
    found = single._places(x.argmax(-1, keepdim=True))
    assert torch.equal(found[0, 20], found[1, 27])  # five to the right of the highest point
    assert not torch.equal(found[1, 27], found[2, 17])  # to the left of it
    assert not torch.equal(found[1, 27], found[3, 30])  # further
    out = single(x)
    assert out.shape == (4, 8)
    assert not torch.allclose(out[1], out[2], atol=1e-4)  # the entries are the same, their order is not
    assert isinstance(summary_of(Embedding(kind="peak", item=2), True), Sorted)


def test_a_peak_at_the_edge_is_read():
    torch.manual_seed(0)
    x = torch.zeros(2, 12)
    x[0, 0] = x[1, 11] = 5.0
    network = build_embedding(Embedding(kind="peak", item=5, step=2, width=16, features=8), 12)
    assert network(x).isfinite().all()


def test_noise_is_told_from_the_wings_of_a_peak_better_than_by_a_set():
    """The level of noise is asked; a peak with wings of unknown height and place hides a part of the series."""
    n, m = 8_000, 24
    level = torch.randn(n, 1, generator=generator(1))
    noise = torch.randn(n, m, generator=generator(2))
    place = m * torch.rand(n, 1, generator=generator(3))
    height = 3 * torch.randn(n, 1, generator=generator(4))
    x = level / 2 + noise + 5 * (height + 5) / (1 + (torch.arange(m) - place).square())
    left = {}
    for kind in ("set", "peak"):
        settings = Embedding(kind=kind, item=5, step=2, width=32, features=16)
        torch.manual_seed(0)
        summary = summary_of(settings, True)
        guess = Guess(1, summary, summary(x[:1]).shape[1], build_embedding(settings, m), 16)
        guess.fit(level[2_000:], x[2_000:], 250)
        with torch.no_grad():
            left[kind] = float((guess(x[:2_000])[0] - level[:2_000]).square().mean())
    # Were the peak known, 24 points of variance 1 would leave 1 / (1 + 24 / 4) = 0.14 of the prior's variance 1.
    assert 0.14 < left["peak"] < 0.8 * left["set"]


def test_items_must_fit():
    with pytest.raises(InputError, match="8 entries cannot be cut into items of 3"):
        build_embedding(Embedding(kind="set", item=3), 8)
    with pytest.raises(InputError, match="8 entries cannot be cut into items of 3"):
        build_embedding(Embedding(kind="peak", item=3), 8)
    with pytest.raises(InputError, match="at least 1"):
        Embedding(kind="set", item=0)


@pytest.mark.parametrize("layer", [torch.nn.Dropout(0.3), torch.nn.BatchNorm1d(16)])
def test_a_fitted_guess_is_left_alone_by_the_training_that_follows(layer):
    torch.manual_seed(0)
    embedding = torch.nn.Sequential(torch.nn.Linear(3, 16), layer, torch.nn.ReLU())
    guess = Guess(2, summary_of(Embedding(), True), 3, embedding, 16)
    theta, x = torch.randn(500, 2, generator=generator(1)), torch.randn(500, 3, generator=generator(2))
    guess.fit(theta + x[:, :2], x, 50)
    before = [v.clone() for v in guess(x)]
    torch.nn.ModuleList([guess]).train()
    guess(5 * x)  # batch statistics would follow this
    for now, then in zip(guess(x), before, strict=True):
        assert torch.equal(now, then)
