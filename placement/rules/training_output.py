"""Curves from the unchanged output of training libraries.

``log_text.numbers_of`` reads lines that name their step. These lines do not, so the
step is found beside or before the numbers:

* Hugging Face's Trainer: ``{'loss': '4.16', 'epoch': '0.25'}``, once in so many steps.
  The bar before it has the step. Without a bar, reports are counted.
* bars of tqdm with a postfix, such as Lightning's: ``Epoch 1:  30%|###  | 3/10
  [00:02<00:05, 1.3it/s, loss=2.3]``.
* Keras: ``Epoch 2/5``, then ``32/32 [====] - 1s 9ms/step - loss: 0.3``.
* plain prints: ``epoch 1/2 loss 2.3``, ``Epoch [2/8], Step [100/600], Loss: 0.3``,
  ``step 6: loss 1.02``, ``iter 0: loss 4.2, time 90.1ms``, accelerate's
  ``epoch 0: {'accuracy': 0.87}``.
* PyTorch's quick start: ``Epoch 1``, then ``loss: 2.30  [   64/60000]``.

Every pattern is linear in the line, and lines are bounded.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from placement.rules.log_text import (
    LONGEST_NUMBER_LINE,
    MOST_NUMBERS_A_LINE,
    numbers_of,
)

MOST_COUNT = 1e15
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,64}m")
_NUMBER = r"-?(?:[0-9]{1,19}(?:\.[0-9]{0,19})?|\.[0-9]{1,19})(?:[eE][+-]?[0-9]{1,3})?"
_DICT = re.compile(rf"'([A-Za-z_][A-Za-z0-9_./]{{0,30}})': '?({_NUMBER})'?(?=[,}}])")
_BAR = re.compile(
    r"(?:[0-9]{1,3}%\|[^|]{0,400}\| ?)([0-9]{1,15})/([0-9]{1,15}) \[([^\]]{0,600})"
)
_KERAS = re.compile(r"^ ?([0-9]{1,15})/([0-9]{1,15}) (?:\[[=>.]{0,80}\]|[━╸ ]{1,80})")
_EPOCH = re.compile(
    r"\bepoch[ :=#]{0,3}[\[(]?([0-9]{1,15})(?: ?(?:/|of) ?([0-9]{1,15}))?",
    re.IGNORECASE,
)
_STEP = re.compile(
    r"\b(?:step|iter|iteration|update)[ :=#]{0,3}[\[(]?([0-9]{1,15})\b(?![.%])",
    re.IGNORECASE,
)
_EXAMPLES = re.compile(r"\[ {0,12}([0-9]{1,15})/ {0,12}([0-9]{1,15})\]\s*\Z")
_PART = re.compile(r"[\[( ]([0-9]{1,15})/([0-9]{1,15})\b")
_PAIR = re.compile(
    rf"(?<![A-Za-z0-9_./-])([A-Za-z_][A-Za-z0-9_./]{{0,30}})(?:[=:] ?| )({_NUMBER})"
    r"(?=[\s,;|)\]}]|$)"
)
_METRIC = re.compile(
    r"loss|acc|perplexity|ppl|f1|bleu|rouge|auc|error|mae|mse|rmse|map|iou|reward|lr"
    r"|learning_rate|grad_norm|score|precision|recall",
    re.IGNORECASE,
)
"""Names of the metrics with a curve. Other words before a number may be anything."""


@dataclass(slots=True)
class TrainingOutput:
    """State of the lines read so far. Keep it between two parts of one log."""

    epoch: float = 0.0
    """The epoch that Keras began, from 1; 0: none yet."""
    bar: float = -1.0
    """The step of the last bar that counts the whole run; -1: none yet."""
    reports: int = 0
    """Number of the Trainer's dictionaries without a bar before them."""
    last: float = -1.0
    """The last step of plain lines, as it was printed; -1: none yet."""
    passed: float = 0.0
    """Steps of earlier epochs, if they are counted from 0 in each."""

    def read(self, line: str) -> dict[str, float] | None:
        """Return the numbers of one line with their step; None: it has none.

        >>> TrainingOutput().read("epoch 1/2 loss 2.3")
        {'step': 1.0, 'loss': 2.3}
        """
        if len(line) > LONGEST_NUMBER_LINE:
            return None
        found = numbers_of(line)
        if found is not None:
            return found
        line = _COLOUR.sub("", line)
        if "{'" in line:
            return self._report(line)
        if bar := _BAR.search(line):
            return self._of_bar(line, bar)
        if keras := _KERAS.search(line):
            return self._of_keras(line, keras)
        return self._of_epoch(line) or self._of_step(line) or self._of_examples(line)

    def _report(self, line: str) -> dict[str, float] | None:
        """Read a dictionary that the Trainer prints, after the bar that it
        interrupts.
        """
        head, _, rest = line.rpartition("{'")
        numbers = _finite(_DICT.findall("{'" + rest))
        if "epoch" not in numbers and (epoch := _EPOCH.search(head)):
            # accelerate's examples print the metrics of an epoch.
            metrics = {key: x for key, x in numbers.items() if _METRIC.search(key)}
            return {"step": float(epoch[1]), **metrics} if metrics else None
        if "epoch" not in numbers or len(numbers) < 2:
            return None
        if bar := _BAR.search(head):
            self.bar = max(self.bar, float(bar[1]))
        if "train_runtime" in numbers or "eval_runtime" in numbers:
            # A summary of the whole run, or of an evaluation at the last step.
            numbers = {key: x for key, x in numbers.items() if _METRIC.search(key)}
            if not numbers:
                return None
        elif self.bar < 0:
            self.reports += 1
        step = self.bar if self.bar >= 0 else self.reports
        return {"step": float(max(1, step)), **numbers}

    def _of_bar(self, line: str, bar: re.Match[str]) -> dict[str, float] | None:
        done, total = float(bar[1]), float(bar[2])
        epoch = _EPOCH.search(line[: bar.start()])
        if epoch is None:
            self.bar = done
        before = float(epoch[1]) * total if epoch else 0.0
        numbers = _metrics(bar[3])
        if not numbers or done > total:
            return None
        return {"step": min(before + done, MOST_COUNT), **numbers}

    def _of_keras(self, line: str, bar: re.Match[str]) -> dict[str, float] | None:
        """Read the last line of an epoch. The others are overwritten."""
        done, total = float(bar[1]), float(bar[2])
        numbers = _metrics(line[bar.end() :])
        if not numbers or done < total:
            return None
        return {"step": min(max(1.0, self.epoch) * total, MOST_COUNT), **numbers}

    def _of_epoch(self, line: str) -> dict[str, float] | None:
        epoch = _EPOCH.search(line)
        if epoch is None:
            return None
        self.epoch = float(epoch[1])
        rest = line[epoch.end() :]
        numbers = _metrics(rest)
        # Batches of the epoch: "Train Epoch: 1 [640/60000 (1%)] Loss: 2.3".
        part = _PART.search(rest)
        step = self.epoch
        if part and float(part[1]) <= float(part[2]):
            step = min(self.epoch * float(part[2]) + float(part[1]), MOST_COUNT)
        elif inner := _STEP.search(rest):
            step = self._counted(float(inner[1]))
        return {"step": step, **numbers} if numbers else None

    def _of_step(self, line: str) -> dict[str, float] | None:
        """Read "step 6: loss 1.02"."""
        step = _STEP.search(line)
        numbers = _metrics(line[step.end() :]) if step else {}
        if step is None or not numbers:
            return None
        return {"step": self._counted(float(step[1])), **numbers}

    def _of_examples(self, line: str) -> dict[str, float] | None:
        """Read "loss: 2.30  [   64/60000]": examples of the epoch."""
        part = _EXAMPLES.search(line)
        numbers = _metrics(line[: part.start()]) if part else {}
        if part is None or not numbers or float(part[1]) > float(part[2]):
            return None
        before = max(0.0, self.epoch - 1) * float(part[2])
        return {"step": min(before + float(part[1]), MOST_COUNT), **numbers}

    def _counted(self, step: float) -> float:
        """Return a step of the whole run. A smaller one than before begins an epoch."""
        if step < self.last:
            self.passed += self.last + 1
        self.last = step
        return min(self.passed + step, MOST_COUNT)


def _metrics(text: str) -> dict[str, float]:
    pairs = _finite(_PAIR.findall(text))
    return {name: value for name, value in pairs.items() if _METRIC.search(name)}


def _finite(pairs: list[tuple[str, str]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, text in pairs[:MOST_NUMBERS_A_LINE]:
        value = float(text)
        if math.isfinite(value):
            found[name.lower()] = value
    return found
