"""Compare runs by their logged numbers, and find the best one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NO_METRIC = frozenset(
    {
        *("step", "steps", "total", "total_steps", "max_steps", "num_steps"),
        *("seconds", "parameters", "trainable_parameters"),
    }
)
"""Numbers of a log line that give the position of a run, not its quality."""
LOW_IS_BEST = ("loss", "error", "perplexity", "ppl", "nll", "mse", "mae", "rmse")


@dataclass(frozen=True)
class MetricSummary:
    """One metric of one run."""

    final: float
    best: float
    best_step: int


def metric_names(runs: Sequence[Sequence[Mapping[str, float]]]) -> list[str]:
    """Return the metrics that some run logs, losses first, then by name.

    >>> metric_names([[{"step": 1, "tokens_per_s": 5, "loss": 2}], []])
    ['loss', 'tokens_per_s']
    """
    found = {name for rows in runs for row in rows for name in row} - NO_METRIC
    return sorted(found, key=lambda name: (not low_is_best(name), name))


def low_is_best(name: str) -> bool:
    """Return whether a smaller value of a metric is a better one.

    >>> low_is_best("val_loss"), low_is_best("accuracy")
    (True, False)
    """
    return any(word in name for word in LOW_IS_BEST)


def summary(
    rows: Sequence[Mapping[str, float]], metric: str, *, low: bool
) -> MetricSummary | None:
    """Return the last and the best value of a metric; None: it was never logged.

    Args:
        rows: numbers by step, in the order of the log.
        low: the smallest value is the best.

    >>> summary([{"step": 1, "loss": 3}, {"step": 2, "loss": 4}], "loss", low=True)
    MetricSummary(final=4, best=3, best_step=1)
    """
    known = [(row[metric], int(row["step"])) for row in rows if metric in row]
    if not known:
        return None
    pick = min if low else max
    best, step = pick(known, key=lambda one: one[0])
    return MetricSummary(final=known[-1][0], best=best, best_step=step)


def differing(settings: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the names whose values are not the same in all runs.

    >>> differing([{"lr": 1, "layers": 2}, {"lr": 3, "layers": 2}])
    ['lr']
    """
    names = dict.fromkeys(name for one in settings for name in one)
    return [name for name in names if len({str(one.get(name)) for one in settings}) > 1]
