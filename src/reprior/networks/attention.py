"""A transformer whose conditioned tokens can be encoded once and shared.

Tokens come in two kinds: given ones (they carry data) and diffused ones (they carry noisy values and the noise level).
With h the tokens of one layer and A(queries; keys) multi-head attention, a layer is, in the shared form,

    given:     h_c <- h_c + A(h_c; h_c),            h_c <- h_c + MLP(h_c)
    diffused:  h_u <- h_u + A(h_u; [h_c, h_u]),     h_u <- h_u + MLP(h_u, shift(noise))

so the given half of the network depends on nothing but the data: `Transformer.encode` runs it once for each of K
observations and keeps the keys and values of every layer; `Transformer.decode` runs the diffused half for N states of
each observation. Keys of an observation are never copied over its N states: their scores are one matrix product. It
equals a dense transformer over [h_c, h_u] whose attention mask forbids given tokens to look at diffused ones.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

__all__ = ["Memory", "Transformer"]

Memory = list[tuple[Tensor, Tensor]]

_FAR = -1e9  # the score of a key that is not to be seen
_PACKED = 32  # states are packed into sequences of about this many diffused tokens


class Block(nn.Module):
    """One layer: attention, then an MLP, each with a skip connection; arguments as in `Transformer`."""

    def __init__(self, width: int, heads: int, head_size: int, widening: int, normalised: bool):
        super().__init__()
        self.heads, self.head_size, self.normalised = heads, head_size, normalised
        self.before_attention = nn.LayerNorm(width)
        self.before_mlp = nn.LayerNorm(width) if normalised else nn.SiLU()
        self.qk = nn.Linear(width, 2 * heads * head_size)
        self.v = nn.Linear(width, heads * head_size)
        self.merge = nn.Linear(heads * head_size, width)
        self.widen = nn.Linear(width, widening * width)
        self.narrow = nn.Linear(widening * width, width)
        for layer in (self.merge, self.narrow):  # at the start every block is the identity
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def project(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each with shape (*, heads, T, head_size), from tokens (*, T, width)."""
        inner = self.before_attention(h)
        q, k = self.qk(inner).unflatten(-1, (2, self.heads, self.head_size)).unbind(-3)
        v = self.v(inner if self.normalised else h).unflatten(-1, (self.heads, self.head_size))
        return q.transpose(-2, -3), k.transpose(-2, -3), v.transpose(-2, -3)

    def finish(self, h: Tensor, attended: Tensor, shift: Tensor | None) -> Tensor:
        """The rest of the layer, from what attention gave, with shape (*, heads, T, head_size)."""
        h = h + self.merge(attended.transpose(-2, -3).flatten(-2))
        inner = self.before_mlp(h)
        hidden = self.widen(inner if shift is None else inner + shift)
        return h + self.narrow(gelu(hidden) if self.normalised else silu(hidden))


class Transformer(nn.Module):
    """The layers.

    Arguments:
        width: the width w of a token.
        layers: the number of layers.
        heads: the number of attention heads.
        head_size: the size of a head.
        widening: the hidden width of the MLP, in units of w.
        normalised: normalise tokens before attention and MLP (the usual transformer). If not, only queries and keys
            are normalised: values are linear in the data, and an MLP is silu, linear, silu, linear, which learns sharp
            functions of noisy values and data far sooner.
    """

    def __init__(self, width: int, layers: int, heads: int, head_size: int, widening: int, normalised: bool):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, head_size, widening, normalised) for _ in range(layers))
        self.last = nn.LayerNorm(width) if normalised else nn.SiLU()

    def stack(self) -> list[Block]:
        """The layers, in order."""
        return [cast(Block, block) for block in self.blocks]

    def encode(self, h: Tensor, bias: Tensor | None) -> Memory:
        """Keys and values of the given tokens in every layer, each with shape (K, heads, T_c, head_size).

        Arguments:
            h: given tokens, with shape (K, T_c, width).
            bias: added to the scores of each key (very negative for an absent token), with shape (K, T_c).
        """
        memory: Memory = []
        spread = None if bias is None else bias[:, None, None, :]
        for i, block in enumerate(self.stack()):
            q, k, v = block.project(h)
            memory.append((k, v))
            if i + 1 < len(self.blocks):
                h = block.finish(h, scaled_dot_product_attention(q, k, v, spread), None)
        return memory

    def decode(self, h: Tensor, shift: Tensor, memory: Memory | None, bias: Tensor | None) -> Tensor:
        """The diffused tokens after the last layer, with shape (K, N, T_u, width).

        Arguments:
            h: diffused tokens, N states for each of K observations, with shape (K, N, T_u, width).
            shift: what the noise adds to the tokens and then in every layer, broadcasting to
                (K, N, T_u, layers + 1, width).
            memory: what `encode` gave, or None when there are no given tokens.
            bias: added to the scores, broadcasting to (K, T_u, T_c + T_u), in the order given, diffused; or None.
        """
        observations, states, tokens, _ = h.shape
        pack = max(1, min(_PACKED // tokens, states))
        packs = -(-states // pack)
        h = _pack(h, packs, pack)
        shift = _pack_shift(shift, packs, pack, tokens)
        h = h + shift[..., 0, :]
        given = 0 if memory is None else memory[0][0].shape[-2]
        mask = _mask(h, given, pack, tokens, bias)
        for i, block in enumerate(self.stack()):
            q, k, v = block.project(h)
            if memory is not None:
                k, v = (_before(old, own, packs) for old, own in zip(memory[i], (k, v), strict=True))
            h = block.finish(h, scaled_dot_product_attention(q, k, v, mask), shift[..., i + 1, :])
        return self.last(h).reshape(observations, packs * pack, tokens, -1)[:, :states]


def _pack(v: Tensor, packs: int, pack: int) -> Tensor:
    """(K, N, T, *) as (K packs, pack T, *), with zero states behind the last."""
    short = packs * pack - v.shape[1]
    if short:
        v = torch.cat([v, v.new_zeros(v.shape[0], short, *v.shape[2:])], 1)
    return v.reshape(v.shape[0] * packs, pack * v.shape[2], *v.shape[3:])


def _pack_shift(shift: Tensor, packs: int, pack: int, tokens: int) -> Tensor:
    """The same for a shift with axes of length one: (K or 1, N or 1, T or 1, layers + 1, w)."""
    observations, states, per_token = shift.shape[:3]
    if states == 1 and observations == 1:
        return shift[0] if per_token == 1 else shift[0].repeat(1, pack, 1, 1)
    if states == 1:
        shift = shift.expand(-1, packs * pack, -1, -1, -1)
    return _pack(shift.expand(-1, -1, tokens, -1, -1), packs, pack)


def _before(old: Tensor, own: Tensor, packs: int) -> Tensor:
    """Keys (or values) of the given tokens (K, heads, T_c, size) before those of each pack (K packs, heads, T, size)."""
    shared = old.unsqueeze(1).expand(-1, packs, -1, -1, -1).flatten(0, 1) if packs > 1 else old
    return torch.cat([shared, own], -2)


def _mask(h: Tensor, given: int, pack: int, tokens: int, bias: Tensor | None) -> Tensor | None:
    """The score bias of packed states, broadcasting to (K packs, heads, pack T, T_c + pack T)."""
    if pack == 1:
        return None if bias is None else _over_packs(bias, len(h)).unsqueeze(1)
    apart = torch.full((pack, tokens, pack, tokens), _FAR, dtype=h.dtype, device=h.device)
    apart.diagonal(dim1=0, dim2=2).zero_()
    apart = torch.nn.functional.pad(apart.reshape(pack * tokens, pack * tokens), (given, 0))
    if bias is None:
        return apart
    own = torch.cat([bias[..., :given], bias[..., given:].repeat(1, 1, pack)], -1)
    own = own if own.shape[-2] == 1 else own.repeat(1, pack, 1)
    return (_over_packs(own, len(h)) + apart).unsqueeze(1)


def _over_packs(bias: Tensor, rows: int) -> Tensor:
    """(K or 1, *) repeated for the packs of each observation."""
    return bias if len(bias) in (1, rows) else bias.repeat_interleave(rows // len(bias), 0)
