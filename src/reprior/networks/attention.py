"""A transformer whose conditioned tokens can be encoded once and shared.

Tokens come in two kinds: given ones (they carry data) and diffused ones (they carry noisy values and the noise level).
With h the tokens of one layer and A(queries; keys) multi-head attention, a layer is, in the shared form,

    given:     h_c <- h_c + A(h_c; h_c),            h_c <- h_c + MLP(h_c)
    diffused:  h_u <- h_u + A(h_u; [h_c, h_u]),     h_u <- h_u + MLP(h_u + shift(noise))

so the given half of the network depends on nothing but the data: `Transformer.encode` runs it once for each of K
observations and keeps the keys and values of every layer; `Transformer.decode` runs the diffused half for N states of
each observation. Keys of an observation are never copied over its N states: their scores are one matrix product. It
equals a dense transformer over [h_c, h_u] whose attention mask forbids given tokens to look at diffused ones.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

__all__ = ["Memory", "Transformer"]

Memory = list[tuple[Tensor, Tensor]]

_FEW = 12  # up to this many given tokens, copying their keys over the states is faster than two softmax parts


class Block(nn.Module):
    """One layer: attention, then an MLP, each with a normalised input and a skip connection."""

    def __init__(self, width: int, heads: int, head_size: int, widening: int):
        super().__init__()
        self.heads, self.head_size = heads, head_size
        self.before_attention = nn.LayerNorm(width)
        self.before_mlp = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * heads * head_size)
        self.merge = nn.Linear(heads * head_size, width)
        self.widen = nn.Linear(width, widening * width)
        self.narrow = nn.Linear(widening * width, width)
        for layer in (self.merge, self.narrow):  # at the start every block is the identity
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def project(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each with shape (*, heads, T, head_size), from tokens (*, T, width)."""
        qkv = self.qkv(self.before_attention(h)).unflatten(-1, (3, self.heads, self.head_size))
        q, k, v = qkv.unbind(-3)
        return q.transpose(-2, -3), k.transpose(-2, -3), v.transpose(-2, -3)

    def finish(self, h: Tensor, attended: Tensor, shift: Tensor | None) -> Tensor:
        """The rest of the layer, from what attention gave, with shape (*, heads, T, head_size)."""
        h = h + self.merge(attended.transpose(-2, -3).flatten(-2))
        inner = self.before_mlp(h)
        return h + self.narrow(gelu(self.widen(inner if shift is None else inner + shift)))


class Transformer(nn.Module):
    """The layers.

    Arguments:
        width: the width w of a token.
        layers: the number of layers.
        heads: the number of attention heads.
        head_size: the size of a head.
        widening: the hidden width of the MLP, in units of w.
    """

    def __init__(self, width: int, layers: int, heads: int, head_size: int, widening: int):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, head_size, widening) for _ in range(layers))
        self.last = nn.LayerNorm(width)

    def encode(self, h: Tensor, bias: Tensor | None) -> Memory:
        """Keys and values of the given tokens in every layer, each with shape (K, heads, T_c, head_size).

        Arguments:
            h: given tokens, with shape (K, T_c, width).
            bias: added to the scores of each key (very negative for an absent token), with shape (K, T_c).
        """
        memory: Memory = []
        spread = None if bias is None else bias[:, None, None, :]
        for i, block in enumerate(self.blocks):
            q, k, v = block.project(h)  # pyright: ignore[reportCallIssue]
            memory.append((k, v))
            if i + 1 < len(self.blocks):
                h = block.finish(h, scaled_dot_product_attention(q, k, v, spread), None)  # pyright: ignore
        return memory

    def decode(self, h: Tensor, shift: Tensor, memory: Memory | None, bias: Tensor | None) -> Tensor:
        """The diffused tokens after the last layer, normalised, with shape (K, N, T_u, width).

        Arguments:
            h: diffused tokens, N states for each of K observations, with shape (K, N, T_u, width).
            shift: what the noise adds in every layer, broadcasting to (K, N, T_u, layers, width).
            memory: what `encode` gave, or None when there are no given tokens.
            bias: added to the scores, broadcasting to (K, N, T_u, T_c + T_u), in the order given, diffused; or None.
        """
        for i, block in enumerate(self.blocks):
            q, k, v = block.project(h)  # pyright: ignore[reportCallIssue]
            attended = _attend(q, k, v, None if memory is None else memory[i], bias)
            h = block.finish(h, attended, shift[..., i, :])  # pyright: ignore[reportCallIssue]
        return self.last(h)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, given: tuple[Tensor, Tensor] | None, bias: Tensor | None
) -> Tensor:
    """Attention of q (K, N, heads, T_u, size) over the given keys (K, heads, T_c, size) and its own."""
    spread = None if bias is None else bias.unsqueeze(2)
    states = q.shape[1]
    if given is not None and states > 1 and given[0].shape[-2] > _FEW:
        return _attend_shared(q, k, v, given, spread)
    if given is not None:
        k, v = (
            torch.cat([old.unsqueeze(1).expand(-1, states, -1, -1, -1), own], -2)
            for old, own in zip(given, (k, v), strict=True)
        )
    if spread is not None:
        spread = spread.expand(*q.shape[:2], *spread.shape[2:]).flatten(0, 1)
    # The fast kernel takes four axes, so fold (K, N) into one.
    out = scaled_dot_product_attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), spread)
    return out.unflatten(0, q.shape[:2])


def _attend_shared(
    q: Tensor, k: Tensor, v: Tensor, given: tuple[Tensor, Tensor], spread: Tensor | None
) -> Tensor:
    # The states of one observation are more queries to the same keys: fold N into the query axis.
    k_c, v_c = given
    q = q * q.shape[-1] ** -0.5
    folded = q.transpose(1, 2)  # (K, heads, N, T_u, size)
    to_given = (folded.flatten(2, 3) @ k_c.transpose(-1, -2)).unflatten(2, folded.shape[2:4]).transpose(1, 2)
    scores = torch.cat([to_given, q @ k.transpose(-1, -2)], -1)
    weights = torch.softmax(scores if spread is None else scores + spread, -1)
    w_c, w_u = weights.split([k_c.shape[-2], k.shape[-2]], -1)
    from_given = (w_c.transpose(1, 2).flatten(2, 3) @ v_c).unflatten(2, folded.shape[2:4]).transpose(1, 2)
    return from_given + w_u @ v
