"""A small language model and text that it can learn.

The text is drawn from a Markov chain with few transitions, so the loss falls
from ln(VOCABULARY) towards the chain's own entropy: learning is visible within
a hundred steps, and a loss that does not fall is a fault.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

VOCABULARY = 64
CHOICES = 4
"""Tokens that may follow each token: the chain's entropy is at most ln 4."""
LEFT_OUT = -100
"""A next token that counts for no loss."""


class Attention(nn.Module):
    """Causal self-attention. Its projections can be cut by heads."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.head_width = hidden // heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Causal attention: each position attends to itself and earlier positions."""
        size, length, _ = x.shape
        # The number of heads of this rank follows from the width.
        shape = (size, length, -1, self.head_width)
        query, key, value = (
            made(x).view(shape).transpose(1, 2)
            for made in (self.query, self.key, self.value)
        )
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(size, length, -1))


class Mlp(nn.Module):
    """Two linear layers, which can be cut by their inner width."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the up projection, the activation and the down projection of x."""
        return self.down(gelu(self.up(x)))


class TransformerBlock(nn.Module):
    """One layer: attention and MLP, each with a norm and a residual connection."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.norm2 = nn.LayerNorm(hidden)
        self.mlp = Mlp(hidden)
        self.dropout = nn.Dropout(dropout)
        self.checkpointing = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the layer. With checkpointing only x is stored, and the rest is
        recomputed.
        """
        if self.checkpointing and torch.is_grad_enabled():
            # The random state is stored, so that dropout repeats its choice.
            again: torch.Tensor = checkpoint(
                self._run, x, use_reentrant=False, preserve_rng_state=True
            )
            return again
        return self._run(x)

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class TinyTransformer(nn.Module):
    """A decoder-only transformer with learned positions, whole or some of its
    layers.
    """

    def __init__(
        self, *, layers: int, hidden: int, heads: int, seq: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.token: nn.Embedding | None = nn.Embedding(VOCABULARY, hidden)
        self.position: nn.Embedding | None = nn.Embedding(seq, hidden)
        # By name, so that a block keeps its name in a part of the model.
        self.blocks = nn.ModuleDict(
            {str(n): TransformerBlock(hidden, heads, dropout) for n in range(layers)}
        )
        self.norm: nn.LayerNorm | None = nn.LayerNorm(hidden)
        self.head: nn.Linear | None = nn.Linear(hidden, VOCABULARY, bias=False)
        self.autocast: torch.dtype | None = None

    def keep(self, first: int, last: int) -> "TinyTransformer":
        """Remove all layers except these. Layer 0 is the embedding, the last one the
        head.
        """
        count = len(self.blocks) + 2
        if first > 0:
            self.token = self.position = None
        if last < count:
            self.norm = self.head = None
        for number in range(count - 2):
            if not first <= number + 1 < last:
                del self.blocks[str(number)]
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of the next token at each position, or the input of the next
        stage.

        Args:
            x: tokens, or the output of the previous stage.
        """
        dtype = self.autocast
        with torch.autocast(x.device.type, dtype, enabled=dtype is not None):
            if self.token is not None and self.position is not None:
                places = torch.arange(x.shape[1], device=x.device)
                x = self.token(x) + self.position(places)
            x = self.through_blocks(x)
            if self.norm is not None and self.head is not None:
                x = self.head(self.norm(x))
        return x

    def through_blocks(self, x: torch.Tensor) -> torch.Tensor:
        """Run the blocks one after another."""
        for block in self.blocks.values():
            x = block(x)
        return x


def loss_of(
    logits: torch.Tensor, following: torch.Tensor, *, reduction: str = "mean"
) -> torch.Tensor:
    """Return the loss of the next tokens, computed in fp32: the mean or the sum."""
    flat = logits.float().flatten(0, 1)
    return cross_entropy(
        flat, following.flatten(), ignore_index=LEFT_OUT, reduction=reduction
    )


class MarkovText:
    """Endless batches of text. The chain is the same in every process."""

    def __init__(self, *, seed: int, rank: int) -> None:
        chain = torch.Generator().manual_seed(seed)
        self.following = torch.randint(
            VOCABULARY, (VOCABULARY, CHOICES), generator=chain
        )
        self.odds = torch.tensor([0.6, 0.25, 0.1, 0.05])
        self.draw = torch.Generator().manual_seed(seed * 1009 + rank + 1)

    def batch(self, size: int, seq: int) -> torch.Tensor:
        """Return ``size`` sequences of ``seq + 1`` tokens."""
        tokens = torch.randint(VOCABULARY, (size, 1), generator=self.draw)
        picks = torch.multinomial(
            self.odds, size * seq, replacement=True, generator=self.draw
        ).view(size, seq)
        row = [tokens[:, 0]]
        for place in range(seq):
            row.append(self.following[row[-1], picks[:, place]])
        return torch.stack(row, dim=1)
