"""Curves from the unchanged output of training libraries.

``log_text.pairs_of`` reads lines that name their step. These lines do not, so the
step is found beside or before the numbers:

* Hugging Face's Trainer: ``{'loss': '4.16', 'epoch': '0.25'}``, once in so many steps.
  The bar before it has the step. Without a bar, reports are counted.
* bars of tqdm with a postfix, such as Lightning's: ``Epoch 1:  30%|###  | 3/10
  [00:02<00:05, 1.3it/s, loss=2.3]``, or with the numbers before the bar.
* Keras: ``Epoch 2/5``, then ``32/32 [====] - 1s 9ms/step - loss: 0.3``.
* plain prints: ``epoch 1/2 loss 2.3``, ``Epoch [2/8], Step [100/600], Loss: 0.3``,
  ``step 6: loss 1.02``, ``iter 0: loss 4.2, time 90.1ms``, accelerate's
  ``epoch 0: {'accuracy': 0.87}``.
* PyTorch's tutorials: ``Epoch 1``, then ``loss: 2.30  [   64/60000]``, and
  ``[1,  2000] loss: 2.17`` with epoch and batch. Its examples:
  ``| epoch   1 |   200/ 2983 batches | loss  7.67``, ``[0/5][50/1583] Loss_D: 0.5``.
* timm: ``Train: 1 [  50/1251 (  4%)]  Loss:  5.93``. Megatron: ``iteration       10/
  500000 | lm loss: 1.08E+01``. fairseq: ``epoch 001:    100 / 200 loss=10.3``.
* XGBoost, LightGBM and CatBoost: ``[1]  train-rmse:0.40  valid-rmse:0.47`` with tabs.
* tables with one row for each epoch (fastai, skorch, Ultralytics), and Stable
  Baselines' tables with one metric in a row.
* a logger's line that ends with the loss and names no step, as in DeepSpeed's
  HelloDeepSpeed: ``... - [Rank 0] Loss: 10.8043``. Such lines are counted while no line
  has named a step.
* lines without any step after an epoch: ``Train Loss: 0.69 | Train Acc: 50.1%``,
  ``Test set: Average loss: 0.05``. They belong to the last step.

Every pattern is linear in the line, and lines are bounded.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from placement.rules.log_text import (
    ANY_CASE,
    COLOUR,
    LONGEST_NUMBER_LINE,
    MOST_NUMBERS_A_LINE,
    QUALIFIER,
    pairs_of,
)

MOST_COUNT = 1e15
"""The largest step."""
MOST_VALUE = 1e300
"""A larger number counts as infinite. Charts subtract numbers."""
_NUMBER = r"-?(?:[0-9]{1,19}(?:\.[0-9]{0,19})?|\.[0-9]{1,19})(?:[eE][+-]?[0-9]{1,3})?"
_NOT_FINITE = r"[-+]?(?:nan|inf(?:inity)?)\b"
_DICT = re.compile(
    rf"'([A-Za-z_][A-Za-z0-9_./]{{0,30}})': '?({_NUMBER}|{_NOT_FINITE})'?(?=[,}}])",
    ANY_CASE,
)
_BAR = re.compile(
    r"(?:[0-9]{1,3}%\|[^|]{0,400}\| ?)([0-9]{1,15})/([0-9]{1,15}) \[([^\]]{0,600})"
)
_KERAS = re.compile(r"^ ?([0-9]{1,15})/([0-9]{1,15}) (?:\[[=>.]{0,80}\]|[━╸ ]{1,80})")
_EPOCH = re.compile(
    r"\b(?:epoch[ :=#]{0,4}|train: (?=[0-9]{1,15} \[))"
    r"[\[(]?([0-9]{1,15})(?: ?(?:/|of) ?([0-9]{1,15}))?",
    ANY_CASE,
)
_STEP = re.compile(
    r"\b(?:steps?|iter|iteration|update)[ :=#]{0,12}[\[(]?([0-9]{1,15})\b(?![.%])",
    ANY_CASE,
)
_BATCH = re.compile(
    r"\b(?:step|iter|iteration|batch)[ :=#]{0,3}[\[(]?([0-9]{1,15})\b(?![.%])",
    ANY_CASE,
)
"""A step inside an epoch."""
_EPOCH_AND_BATCH = re.compile(
    r"^\s{0,8}\[ {0,4}([0-9]{1,9}), {0,8}([0-9]{1,15})(?:/[0-9]{1,15})?\]"
)
_OF_EPOCH_AND_BATCH = re.compile(
    r"^\s{0,8}\[ {0,4}([0-9]{1,9})/[0-9]{1,9}\]\s{0,4}"
    r"\[ {0,8}([0-9]{1,15})/ {0,8}([0-9]{1,15})\]"
)
_ROUND = re.compile(r"^\[?([0-9]{1,9})(?:\]|:)\t")
_TABBED = re.compile(
    rf"([A-Za-z][A-Za-z0-9_@' .-]{{0,40}}): ?({_NUMBER})(?: \([0-9]{{1,9}}\))?"
)
_ROW = re.compile(
    rf"^\| {{0,40}}([A-Za-z][A-Za-z0-9_/]{{0,30}}) {{1,40}}\| {{0,40}}({_NUMBER}) "
    r"{0,40}\|$"
)
_EXAMPLES = re.compile(r"\[ {0,12}([0-9]{1,15})/ {0,12}([0-9]{1,15})\]\s*\Z")
_PART = re.compile(r"[\[( ]([0-9]{1,15}) ?/ {0,12}([0-9]{1,15})\b")
_PAIR = re.compile(
    rf"(?<![A-Za-z0-9_./-]){QUALIFIER}([A-Za-z_][A-Za-z0-9_./@]{{0,30}})"
    rf"(?:[ \t]{{0,2}}[=:][ \t]{{0,6}}|[ \t]{{1,6}})({_NUMBER}|{_NOT_FINITE})"
    r"%?(?=[\s,;|)\]}]|\.?$)",
    ANY_CASE,
)
_OF_A_PART = re.compile(
    r"(?:train(?:ing)?|val(?:id(?:ation)?)?|dev|eval(?:uation)?|test|avg|average)"
    r"(?![a-z])",
    ANY_CASE,
)
"""Words with which a line about a whole epoch begins."""
_METRIC = re.compile(
    r"loss|acc|perplexity|ppl|f1|bleu|rouge|auc|error|mae|mse|rmse|map|iou|rew|lr"
    r"|learning_rate|grad_norm|score|precision|recall|dice|psnr|ssim|fid|elbo|wer|cer"
    r"|entropy|return|^(?:train|val|valid|validation|dev|test|r2|nll|kl|l1|l2)$",
    ANY_CASE,
)
"""Names of the metrics with a curve. Other words before a number may be anything."""
_LOSS_ALONE = re.compile(
    rf"(?:^|[\]>|:-] {{0,2}})loss ?[:=] {{0,4}}({_NUMBER}|{_NOT_FINITE})\s{{0,4}}\Z",
    ANY_CASE,
)
_STEPS_OF_TABLES = ("total_timesteps", "timesteps", "iterations", "epoch")
_WHOLE = re.compile(rf"{_NUMBER}|{_NOT_FINITE}", ANY_CASE)
_TABLE_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./@-]{0,30}")


@dataclass(slots=True)
class TrainingOutput:
    """State of the lines read so far. Keep it between two parts of one log."""

    epoch: float = -1.0
    """The epoch that was named last; -1: none yet."""
    bar: float = -1.0
    """The step of the last bar that counts the whole run; -1: none yet."""
    bar_total: float = 0.0
    """The total of that bar."""
    reports: int = 0
    """Number of the Trainer's dictionaries without a bar before them, and of lines with
    a loss alone.
    """
    last: float = -1.0
    """The last step of plain lines, as it was printed; -1: none yet."""
    last_epoch: float = -1.0
    """The epoch of that step, if its line names one; -1: none."""
    passed: float = 0.0
    """Steps of earlier epochs, if they are counted from 0 in each."""
    at: float = -1.0
    """The last step that is finer than an epoch; -1: none yet."""
    columns: list[str] = field(default_factory=list)
    """Words of the head of a table with one row for each epoch."""
    rows: dict[str, float] = field(default_factory=dict)
    """Rows of a table with one metric in a row, until the table ends."""
    not_finite: dict[str, float] = field(default_factory=dict)
    """Metrics that were NaN or infinite, with the first step at which they were."""

    def read(self, line: str) -> dict[str, float] | None:
        """Return the numbers of one line with their step; None: it has none.

        >>> TrainingOutput().read("epoch 1/2 loss 2.3")
        {'step': 1.0, 'loss': 2.3}
        """
        if not line or len(line) > LONGEST_NUMBER_LINE:
            return None
        found: dict[str, float] | None = pairs_of(line)
        if not found or "step" not in found or len(found) < 2:
            found = self._of_library(COLOUR.sub("", line))
        return self._drawn(found) if found else None

    def _drawn(self, found: dict[str, float]) -> dict[str, float] | None:
        """Return the finite numbers of a row. Remember the others."""
        step = found.get("step", math.nan)
        if not 0 <= step <= MOST_COUNT:
            return None
        row = {name: value for name, value in found.items() if abs(value) < MOST_VALUE}
        for name in found.keys() - row.keys():
            if len(self.not_finite) < MOST_NUMBERS_A_LINE:
                self.not_finite.setdefault(name, step)
        return row if len(row) > 1 else None

    def _of_library(self, line: str) -> dict[str, float] | None:
        if "{'" in line:
            return self._report(line)
        if self.columns and (row := self._of_table(line)):
            return row
        if bar := _BAR.search(line):
            return self._of_bar(line, bar)
        if keras := _KERAS.search(line):
            return self._of_keras(line, keras)
        if line.startswith(("|", "-")) and (self.rows or line.endswith("|")):
            if cells := _ROW.match(line):
                if len(self.rows) < MOST_NUMBERS_A_LINE * 2:
                    self.rows[cells[1].lower()] = float(cells[2])
                return None
            if self.rows and line.startswith("-----"):
                return self._end_of_rows()
        return (
            self._of_round(line)
            or self._of_batch(line)
            or self._of_epoch(line)
            or self._of_step(line)
            or self._of_examples(line)
            or self._of_part(line)
            or self._of_loss_alone(line)
        )

    def _report(self, line: str) -> dict[str, float] | None:
        """Read a dictionary that the Trainer prints, after the bar that it
        interrupts.
        """
        head, _, rest = line.rpartition("{'")
        numbers = _numbers(_DICT.findall("{'" + rest))
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
        head, done, total = line[: bar.start()], float(bar[1]), float(bar[2])
        epoch = _EPOCH.search(head)
        if epoch is None and self._is_of_the_run(head, total):
            self.bar, self.bar_total = done, total
        before = float(epoch[1]) * total if epoch else 0.0
        # A description with numbers ends with a colon before the bar.
        numbers = _metrics(bar[3]) or _metrics(head.rstrip(" :"))
        if not numbers or done > total:
            return None
        return {"step": min(before + done, MOST_COUNT), **numbers}

    def _is_of_the_run(self, head: str, total: float) -> bool:
        """Return whether a bar counts the steps of the run.

        Bars with a description are of files or examples ("Writing model shards: "). A
        shorter one during the run is of an evaluation.
        """
        described = any(letter.isalpha() for letter in COLOUR.sub("", head))
        return not described and (total >= self.bar_total or self.bar >= self.bar_total)

    def _of_keras(self, line: str, bar: re.Match[str]) -> dict[str, float] | None:
        """Read the last line of an epoch. The others are overwritten."""
        done, total = float(bar[1]), float(bar[2])
        numbers = _metrics(line[bar.end() :])
        if not numbers or done < total:
            return None
        self.at = min(max(1.0, self.epoch) * total, MOST_COUNT)
        return {"step": self.at, **numbers}

    def _of_table(self, line: str) -> dict[str, float] | None:
        """Read the row of an epoch in a table whose head was read."""
        bar = _BAR.search(line)
        if bar and float(bar[1]) < float(bar[2]):
            return None
        words = line[: bar.start()].split() if bar else line.split()
        if bar and words and words[-1].endswith("%|"):
            words.pop()
        if len(words) != len(self.columns):
            return None
        epoch = words[0].partition("/")[0]
        if not epoch.isdecimal() or len(epoch) > 9:
            return None
        pairs = zip(self.columns[1:], words[1:], strict=True)
        numbers = _numbers([pair for pair in pairs if _WHOLE.fullmatch(pair[1])])
        found = {name: value for name, value in numbers.items() if _METRIC.search(name)}
        return {"step": float(epoch), **found} if found else None

    def _end_of_rows(self) -> dict[str, float] | None:
        """Return what the rows of a finished table say."""
        rows, self.rows = self.rows, {}
        step = next((rows[name] for name in _STEPS_OF_TABLES if name in rows), None)
        found = {name: value for name, value in rows.items() if _METRIC.search(name)}
        return {"step": step, **found} if step is not None and found else None

    def _of_round(self, line: str) -> dict[str, float] | None:
        """Read a round of boosting: fields between tabs."""
        head = _ROUND.match(line)
        if head is None:
            return None
        found: dict[str, float] = {}
        for text in line[head.end() :].split("\t")[:MOST_NUMBERS_A_LINE]:
            if pair := _TABBED.fullmatch(text.strip()):
                name = pair[1].replace("'s", "").strip()
                found[re.sub(r"[ '-]+", "_", name)[:31]] = float(pair[2])
        return {"step": float(head[1]), **found} if found else None

    def _of_batch(self, line: str) -> dict[str, float] | None:
        """Read "[1,  2000] loss: 2.17" and "[0/5][50/1583] Loss_D: 0.5"."""
        if known := _OF_EPOCH_AND_BATCH.match(line):
            numbers = _metrics(line[known.end() :])
            step = float(known[1]) * float(known[3]) + float(known[2])
            step = min(step, MOST_COUNT)
        elif head := _EPOCH_AND_BATCH.match(line):
            numbers = _metrics(line[head.end() :])
            step = self._counted(float(head[2]), float(head[1])) if numbers else 0.0
        else:
            return None
        if not numbers:
            return None
        self.at = step
        return {"step": step, **numbers}

    def _of_epoch(self, line: str) -> dict[str, float] | None:
        epoch = _EPOCH.search(line)
        if epoch is None:
            self._head_of_table(line)
            return None
        self.epoch = float(epoch[1])
        rest = line[epoch.end() :]
        numbers = _metrics(rest)
        # Batches of the epoch: "Train Epoch: 1 [640/60000 (1%)] Loss: 2.3".
        part = _PART.search(rest)
        if part and float(part[1]) <= float(part[2]):
            step = min(self.epoch * float(part[2]) + float(part[1]), MOST_COUNT)
        elif inner := _BATCH.search(rest):
            step = self._counted(float(inner[1]), self.epoch) if numbers else 0.0
        else:
            # The epoch as a whole, on the axis of the steps where there are some.
            step = self.at if self.at >= 0 else self.epoch
            return {"step": step, **numbers} if numbers else None
        if not numbers:
            return None
        self.at = step
        return {"step": step, **numbers}

    def _of_step(self, line: str) -> dict[str, float] | None:
        """Read "step 6: loss 1.02"."""
        step = _STEP.search(line)
        numbers = _metrics(line[step.end() :]) if step else {}
        if step is None or not numbers:
            return None
        self.at = self._counted(float(step[1]))
        return {"step": self.at, **numbers}

    def _of_examples(self, line: str) -> dict[str, float] | None:
        """Read "loss: 2.30  [   64/60000]": examples of the epoch."""
        part = _EXAMPLES.search(line)
        numbers = _metrics(line[: part.start()]) if part else {}
        if part is None or not numbers or float(part[1]) > float(part[2]):
            return None
        before = max(0.0, self.epoch - 1) * float(part[2])
        self.at = min(before + float(part[1]), MOST_COUNT)
        return {"step": self.at, **numbers}

    def _of_part(self, line: str) -> dict[str, float] | None:
        """Read "Test set: Average loss: 0.05", which belongs to the last step."""
        step = max(self.at, self.epoch)
        if step < 0:
            return None
        text = line.strip()
        start = _OF_A_PART.match(text)
        head = f"{start[0].lower()}_" if start else ""
        if start and text[start.end() :].startswith((" set: ", ": ", " Error: ")):
            # "Test set: Average loss" is the loss of the test set.
            text = text[start.end() :].partition(": ")[2]
        elif start:
            head = ""
        pairs = _PAIR.match(text)
        numbers = _metrics(text) if pairs else {}
        if head:
            numbers = {
                head + name.removeprefix("average_").removeprefix("avg_"): value
                for name, value in numbers.items()
            }
        if not any(_OF_A_PART.match(name) for name in numbers):
            return None
        return {"step": step, **numbers}

    def _of_loss_alone(self, line: str) -> dict[str, float] | None:
        """Read "[Rank 0] Loss: 10.8043", the next one of such lines."""
        if max(self.at, self.epoch, self.bar) >= 0:
            return None
        loss = _LOSS_ALONE.search(line)
        if loss is None:
            return None
        self.reports += 1
        return {"step": float(self.reports), "loss": float(loss[1])}

    def _head_of_table(self, line: str) -> None:
        """Remember the columns of a table that begins with the epoch."""
        if "poch" not in line:
            return
        words = line.split()
        if not 2 < len(words) <= MOST_NUMBERS_A_LINE or words[0].lower() != "epoch":
            return
        if all(_TABLE_WORD.fullmatch(word) for word in words):
            self.columns = [word.lower() for word in words]

    def _counted(self, step: float, epoch: float = -1.0) -> float:
        """Return a step of the whole run.

        A smaller step than before begins an epoch. So does the same step in another
        epoch, for lines that name it.
        """
        again = step == self.last and epoch != self.last_epoch
        if step < self.last or again:
            self.passed += self.last + 1
        self.last, self.last_epoch = step, epoch
        return min(self.passed + step, MOST_COUNT)


def _metrics(text: str) -> dict[str, float]:
    pairs = [
        ("_".join(filter(None, (before.rstrip(".").lower(), name))), value)
        for before, name, value in _PAIR.findall(text)
    ]
    numbers = _numbers(pairs)
    return {name: value for name, value in numbers.items() if _METRIC.search(name)}


def _numbers(pairs: list[tuple[str, str]]) -> dict[str, float]:
    return {name.lower(): float(text) for name, text in pairs[:MOST_NUMBERS_A_LINE]}
