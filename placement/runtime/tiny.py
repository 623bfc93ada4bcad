"""A small language model and text that it can learn.

The text is drawn from a Markov chain with few transitions, so the loss falls
from ln(VOCABULARY) towards the chain's own entropy: learning is visible within
a hundred steps, and a loss that does not fall is a fault.
"""

import torch
from torch import nn

VOCABULARY = 64
CHOICES = 4
"""Tokens that may follow each token: the chain's entropy is at most ln 4."""


class TinyTransformer(nn.Module):
    """A decoder-only transformer with learned positions."""

    mask: torch.Tensor

    def __init__(self, *, layers: int, hidden: int, heads: int, seq: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, hidden)
        self.position = nn.Embedding(seq, hidden)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                hidden,
                heads,
                dim_feedforward=4 * hidden,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(hidden)
        mask = nn.Transformer.generate_square_subsequent_mask(seq)
        self.register_buffer("mask", mask, persistent=False)
        self.head = nn.Linear(hidden, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next token at each place."""
        length = tokens.shape[1]
        places = torch.arange(length, device=tokens.device)
        x = self.token(tokens) + self.position(places)
        for block in self.blocks:
            x = block(x, src_mask=self.mask[:length, :length], is_causal=True)
        return self.head(self.norm(x))


class MarkovText:
    """Endless batches of text; the chain is the same for every process."""

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
