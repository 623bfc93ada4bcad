"""A sweep: values by parameter, and the combinations that an array of Jobs runs.

Typed as one line a parameter, ``learning_rate = 0.001, 0.01``. A recipe takes a
parameter as one of its settings; a script finds it as ``{learning_rate}`` in its
arguments and as SWEEP_LEARNING_RATE in its environment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product

from placement.planner.values.errors import LaunchInvalid
from telemetry.protocol.sentences import sentence

Value = int | float | str
Sweep = dict[str, list[Value]]
MOST_TASKS = 100
MOST_PARAMETERS = 8
MOST_VALUE_CHARACTERS = 120
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_PLACE = re.compile(r"\{([a-z][a-z0-9_]{0,39})\}")


def read_sweep(text: str) -> Sweep:
    """Parse a typed sweep. An empty text means no sweep.

    Raises:
        LaunchInvalid: ``sweep``, with the invalid line.

    >>> read_sweep("layers = 2, 4\\nname = a")
    {'layers': [2, 4], 'name': ['a']}
    """
    found: dict[str, object] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, equals, values = line.partition("=")
        name = name.strip()
        if not equals:
            raise _invalid(
                sentence(
                    "line {number} has no '=': write name = value, value", number=number
                )
            )
        if name in found:
            raise _invalid(
                sentence(
                    "line {number} names {name} again", number=number, name=name[:40]
                )
            )
        found[name] = [_number(part.strip()) for part in values.split(",")]
    return checked_sweep(found)


def checked_sweep(given: Mapping[str, object]) -> Sweep:
    """Return a sweep whose every part is valid.

    Raises:
        LaunchInvalid: ``sweep``, with the problem.
    """
    sweep: Sweep = {}
    if len(given) > MOST_PARAMETERS:
        raise _invalid(
            sentence(
                "has {given} parameters; at most {most_parameters}",
                given=len(given),
                most_parameters=MOST_PARAMETERS,
            )
        )
    tasks = 1
    for name, values in given.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _invalid(
                sentence(
                    "'{name}' is not a valid name. Use a-z, 0-9 and _",
                    name=str(name)[:40],
                )
            )
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise _invalid(sentence("{name} has no values", name=name))
        sweep[name] = [_checked(name, value) for value in values]
        if len(set(map(repr, sweep[name]))) < len(values):
            raise _invalid(sentence("{name} has a value twice", name=name))
        tasks *= len(values)
        if tasks > MOST_TASKS:
            raise _invalid(
                sentence("comes to more than {most_tasks} jobs", most_tasks=MOST_TASKS)
            )
    return sweep


def combinations(sweep: Sweep) -> list[dict[str, Value]]:
    """Return every combination, the last parameter turning fastest.

    >>> combinations({"a": [1, 2], "b": ["x"]})
    [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'x'}]
    """
    if not sweep:
        return []
    return [dict(zip(sweep, row, strict=True)) for row in product(*sweep.values())]


def filled(arguments: Sequence[str], values: Mapping[str, Value]) -> list[str]:
    """Return a script's arguments with the values in their places.

    A name in braces that is no parameter stays as it is.

    >>> filled(["--lr={lr}", "{other}"], {"lr": 0.1})
    ['--lr=0.1', '{other}']
    """
    return [
        _PLACE.sub(lambda m: str(values.get(m[1], m[0])), word) for word in arguments
    ]


def variables(values: Mapping[str, Value], index: int) -> dict[str, str]:
    """Return the environment variables of a script.

    >>> variables({"lr": 0.1}, 3)
    {'GPUPORTAL_ARRAY_INDEX': '3', 'SWEEP_LR': '0.1'}
    """
    found = {f"SWEEP_{name.upper()}": str(value) for name, value in values.items()}
    return {"GPUPORTAL_ARRAY_INDEX": str(index), **found}


def title_of(values: Mapping[str, Value]) -> str:
    """Return the words that distinguish one Job of an array from the others.

    >>> title_of({"lr": 0.1, "layers": 4})
    'lr=0.1 layers=4'
    """
    return " ".join(f"{name}={value}" for name, value in values.items())


def _invalid(why: str) -> LaunchInvalid:
    return LaunchInvalid({"sweep": why})


def _number(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _checked(name: str, value: object) -> Value:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _invalid(
            sentence("{name}: a value must be a number or a word", name=name)
        )
    if isinstance(value, float) and not abs(value) < float("inf"):
        raise _invalid(
            sentence("{name}: {value} is not a number", name=name, value=value)
        )
    text = str(value)
    if not text or len(text) > MOST_VALUE_CHARACTERS or not text.isprintable():
        raise _invalid(
            sentence(
                "{name}: a value is 1 to {most_value_characters} printable characters",
                name=name,
                most_value_characters=MOST_VALUE_CHARACTERS,
            )
        )
    return value
