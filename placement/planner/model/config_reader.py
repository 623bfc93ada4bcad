"""Read fields of an untrusted config.json with bounds, and collect every problem.

After a problem a `ConfigFields` reader returns a harmless value, so that one reading
reports all invalid fields. `finish()` raises the collected problems. It is not the
codec of `telemetry.protocol`: these files come from others and have aliases for most
fields, and their reader reports all problems at once.
"""

from collections.abc import Mapping
from typing import Any

from placement.planner.model.spec import MAX_LAYERS
from placement.planner.values.errors import SpecInvalid
from telemetry.protocol.sentences import sentence

MAX_NESTING = 16
MAX_KEYS = 20_000
MAX_NUMBER = 2**31


class ConfigFields:
    """Bounded reading of one JSON object. Aliases are tried in order."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self.problems: dict[str, str] = {}
        self.wholes = 0
        """Whole numbers that were read and are no defaults."""

    def _find(self, names: tuple[str, ...]) -> tuple[str, Any]:
        for name in names:
            if self._config.get(name) is not None:
                return name, self._config[name]
        return names[0], None

    def whole(
        self, *names: str, default: int | None = None, low: int = 1, high: int = 2**20
    ) -> int:
        """Return a whole number within [low, high]. `default` None means that it is
        required.
        """
        name, value = self._find(names)
        if value is None:
            if default is None:
                self.problems[name] = sentence("is missing")
                return max(low, 1)
            return default
        self.wholes += 1
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int:
            self.problems[name] = sentence(
                "must be a whole number, not {value}", value=_shown(value)
            )
        elif not low <= value <= high:
            self.problems[name] = sentence(
                "must be between {low} and {high}, not {value}",
                low=f"{low:,}",
                high=f"{high:,}",
                value=_shown(value),
            )
        else:
            return value
        return max(low, 1)

    def ratio(self, *names: str, default: float = 0.0) -> float:
        """Return a share between 0 and 1, such as a dropout probability."""
        name, value = self._find(names)
        if value is None:
            return default
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 <= value <= 1  # NaN too
        ):
            self.problems[name] = sentence(
                "must be between 0 and 1, not {value}", value=_shown(value)
            )
            return default
        return float(value)

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return true or false."""
        name, value = self._find(names)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.problems[name] = sentence(
                "must be true or false, not {value}", value=_shown(value)
            )
            return default
        return value

    def word(self, *names: str, default: str = "") -> str:
        """Return a short text."""
        name, value = self._find(names)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > 200:
            self.problems[name] = sentence(
                "must be a short text, not {value}", value=_shown(value)
            )
            return default
        return value

    def choice(self, *names: str, options: Mapping[str, str], default: str) -> str:
        """Return the planner's word for one of the options' keys."""
        given = self.word(*names, default=default)
        if given not in options:
            name, _ = self._find(names)
            self.problems[name] = sentence(
                "'{given}' is not known; known: {options}",
                given=given[:40],
                options=", ".join(sorted(options)),
            )
            return options[default]
        return options[given]

    def peek(self, name: str) -> Any:
        """Return a raw value, for readers that check its type themselves."""
        return self._config.get(name)

    def is_null(self, name: str) -> bool:
        """Return whether the field exists and is null, which differs from a missing
        field.
        """
        return name in self._config and self._config[name] is None

    def require(self, field: str, holds: bool, detail: str) -> None:
        """Note a problem unless a condition holds (only the first problem per
        field).
        """
        if not holds:
            self.problems.setdefault(field, detail)

    def finish(self) -> None:
        """Raise SpecInvalid with all problems."""
        if self.problems:
            raise SpecInvalid(self.problems)


def check_size(config: Any) -> None:
    """Refuse JSON that is not an object, is too deep or too wide. Linear in its
    size.
    """
    if not isinstance(config, Mapping):
        raise SpecInvalid({"config": sentence("must be a JSON object")})
    todo: list[tuple[Any, int]] = [(config, 1)]
    seen = 0
    while todo:
        value, depth = todo.pop()
        seen += 1
        if depth > MAX_NESTING:
            raise SpecInvalid(
                {
                    "config": sentence(
                        "nested deeper than {max_nesting} levels",
                        max_nesting=MAX_NESTING,
                    )
                }
            )
        if seen > MAX_KEYS:
            raise SpecInvalid(
                {
                    "config": sentence(
                        "more than {max_keys} values", max_keys=f"{MAX_KEYS:,}"
                    )
                }
            )
        if isinstance(value, Mapping):
            todo += [(inner, depth + 1) for inner in value.values()]
        elif isinstance(value, list):
            todo += [(inner, depth + 1) for inner in value]


def check_numbers(config: Mapping[str, Any]) -> None:
    """Refuse numbers that no size can have, before anything is built from them."""
    todo: list[tuple[str, Any]] = [(str(key), value) for key, value in config.items()]
    while todo:
        name, value = todo.pop()
        if isinstance(value, Mapping):
            todo += [(str(key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            todo += [(name, inner) for inner in value]
        elif type(value) is int and value > MAX_LAYERS and _counts_layers(name):
            raise SpecInvalid(
                {
                    name[:80]: sentence(
                        "{value}; at most {max_layers} layers",
                        value=f"{value:,}",
                        max_layers=f"{MAX_LAYERS:,}",
                    )
                }
            )
        elif isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:
            raise SpecInvalid(
                {
                    name[:80]: sentence(
                        "must be between -{max_number} and {max_number}",
                        max_number=f"{MAX_NUMBER:,}",
                    )
                }
            )


def _counts_layers(name: str) -> bool:
    """Return whether a name counts layers: n_layer, num_hidden_layers, encoder_layers,
    depths.
    """
    return name.endswith(("layer", "layers", "blocks", "depth", "depths", "repeats"))


def _shown(value: Any) -> str:
    """Return a value in a short form for people.

    A whole number beyond Python's limit on digits is described by its size.
    """
    if type(value) is int and value.bit_length() > 128:
        return sentence(
            "a number of {bit_length} bits", bit_length=f"{value.bit_length():,}"
        )
    if isinstance(value, list | Mapping):
        return f"a {'list' if isinstance(value, list) else 'object'}"
    return repr(value)[:60]
