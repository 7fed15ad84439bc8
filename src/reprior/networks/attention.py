"""A transformer whose conditioned tokens can be encoded once and shared.

Tokens come in two kinds: given ones (they carry data) and diffused ones (they carry noisy values and the noise level).
With h the tokens of one layer and A(queries; keys) multi-head attention, a layer is, in the shared form,

    given:     h_c <- h_c + A(h_c; h_c),                 h_c <- h_c + MLP(h_c)
    diffused:  h_u <- h_u + A(h_u; h_c) + A(h_u; h_u),   h_u <- h_u + MLP(h_u, shift(noise))

so the given half of the network depends on nothing but the data: `Transformer.encode` runs it once for each of K
observations and keeps the keys and values of every layer; `Transformer.decode` runs the diffused half for N states of
each observation. The two attentions of a diffused token share their queries but each has its own softmax, so the weight
of the data does not fall with the number of noisy tokens. The keys of an observation are not copied over its N states. In
the dense form all tokens go through `decode` as one kind.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

__all__ = ["Memory", "Transformer"]

Memory = list[tuple[Tensor, Tensor]]


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
        for i, block in enumerate(self.stack()):
            q, k, v = block.project(h)
            if bias is not None:  # the softmax is not zero where all keys are absent, so their values must be
                v = v * (bias == 0).unsqueeze(1).unsqueeze(-1)
            memory.append((k, v))
            if i + 1 < len(self.blocks):
                h = block.finish(h, _attend(q, k, v, None if bias is None else bias[:, None, None]), None)
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
        h = h + shift[..., 0, :]
        given = 0 if memory is None else memory[0][0].shape[-2]
        to_given = to_own = None
        if bias is not None:
            to_given = bias[..., :given].unsqueeze(1)
            to_own = bias[..., given:].repeat_interleave(states, 0).unsqueeze(1)
        for i, block in enumerate(self.stack()):
            q, k, v = block.project(h)  # (K, N, heads, T_u, head_size)
            attended = _attend(*(part.flatten(0, 1) for part in (q, k, v)), to_own).unflatten(0, (observations, states))
            if memory is not None:
                # All states of an observation have the same keys: one long sequence of queries.
                queries = q.transpose(1, 2).flatten(2, 3)
                from_given = _attend(queries, *memory[i], to_given).unflatten(2, (states, tokens))
                attended = attended + from_given.transpose(1, 2)
            h = block.finish(h, attended, shift[..., i + 1, :])
        return self.last(h)


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Attention, with shape (B, heads, Q, size), of queries (B, heads, Q, size) to keys and values (B, heads, T, size)."""
    if k.shape[-2] == 1:  # one key: its value
        return v.expand(q.shape)
    return scaled_dot_product_attention(q, k, v, bias)
