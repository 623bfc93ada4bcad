"""A text data set as blocks of tokens of one length, without padding.

All texts are joined, each with the tokenizer's end mark behind it, and cut into blocks.
Each token but the first is predicted once in an epoch. The tokens are in a file of the
Job's folder, which all ranks of a node map.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, Subset

from placement.planner.values.errors import LaunchInvalid

TOKENS = Path("tokens.bin")
"""In the Job's own folder."""
BYTES = 4
"""Of one token."""
TEXTS_AT_ONCE = 1024


class TokenBlocks(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pairs of a block of tokens and the tokens that follow each of them."""

    def __init__(self, path: Path, seq: int) -> None:
        """Map a file that `write_tokens` has written.

        Args:
            path: of the file.
            seq: tokens of a block.
        """
        self.seq = seq
        size = path.stat().st_size // BYTES
        self.count = max(0, (size - 1) // seq)
        self.tokens = torch.from_file(
            str(path), shared=False, size=size, dtype=torch.int32
        )

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = number * self.seq
        piece = self.tokens[first : first + self.seq + 1].long()
        return piece[:-1], piece[1:]


def write_tokens(
    path: Path, texts: Iterable[str], tokenizer: Any, *, is_one_text: bool, most: int
) -> None:
    """Write the tokens of a data set.

    Args:
        path: of the file.
        texts: one for each row, or the parts of one text.
        tokenizer: of the model.
        is_one_text: the texts are parts of one text.
        most: the size of the model's vocabulary.

    Raises:
        LaunchInvalid: the tokenizer has tokens that the model does not have.
    """
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    with path.open("wb") as file:
        for rows in _encoded(texts, tokenizer, special=not is_one_text):
            for row in rows:
                if row and max(row) >= most:
                    raise LaunchInvalid(
                        {
                            "model": f"its tokenizer has the token {max(row)}, but the "
                            f"model has only {most} tokens"
                        }
                    )
                array("i", row if is_one_text else [*row, *end]).tofile(file)
        if is_one_text:
            array("i", end).tofile(file)


def _encoded(
    texts: Iterable[str], tokenizer: Any, *, special: bool
) -> Iterator[Sequence[list[int]]]:
    rest = iter(texts)
    while some := list(islice(rest, TEXTS_AT_ONCE)):
        yield tokenizer(some, add_special_tokens=special)["input_ids"]


def divided(
    items: Dataset[Any], percent: float, seed: int
) -> tuple[Subset[Any], Subset[Any]]:
    """Return the items to train on, and those that are held out for evaluation.

    At least one of two items is held out, unless `percent` is 0.
    """
    count = len(items)  # type: ignore[arg-type]
    held = min(count - 1, max(1, round(count * percent / 100))) if percent else 0
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    held_out = sorted(order[: max(0, held)].tolist())
    rest = sorted(order[max(0, held) :].tolist())
    return Subset(items, rest), Subset(items, held_out)
