"""A user's own code, good and bad."""

import socket

import torch
from torch import nn


class Small(nn.Module):
    """Reads tokens, scores tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 32)
        self.head = nn.Linear(32, 100, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(x))


def raises() -> nn.Module:
    raise ValueError("no weights today")


def spy() -> nn.Module:
    socket.create_connection(("127.0.0.1", 9))
    return Small()
