"""The layouts of an operator's results: shapes, strides and types, by torch's meta
kernels.

Layers repeat, so results are cached by operator and layout of the arguments. In a model
of a hundred layers the meta kernels run for one of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

_META = torch.device("meta")


class Layout(NamedTuple):
    """A tensor to be made."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class Unsupported(Exception):
    """An operator that torch cannot answer without running it."""

    def __init__(self, name: str, why: str) -> None:
        self.name, self.why = name, why
        super().__init__(f"operator {name}: {why}")


class ShapeBook:
    """Runs meta kernels, and caches their results."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def answer(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the results of `func`, with Layouts in place of tensors."""
        named = _key(tuple(sorted(kwargs.items()))) if kwargs else ()
        key = (func, _key(args), named)
        found = self._known.get(key, self)
        if found is self:
            found = self._known[key] = _ask(func, args, kwargs)
        return found


def _key(value: Any) -> Any:
    """Return a hashable key with everything on which a result depends."""
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype)
    if isinstance(value, tuple | list):
        return tuple([_key(one) for one in value])
    # 1, 1.0 and True are equal but give different types of results.
    return (type(value), value)


def _ask(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    given = {name: _to_meta(value) for name, value in kwargs.items()}
    if "device" in kwargs or not has_tensor((args, tuple(kwargs.values()))):
        given["device"] = _META
    try:
        result = func(*_to_meta(args), **given)
    except NotImplementedError as error:
        why = str(error).splitlines()[0][:200]
        raise Unsupported(str(func), why) from error
    return _layouts(result)


def has_tensor(value: Any) -> bool:
    """Return whether there is a tensor anywhere in an argument."""
    if isinstance(value, list | tuple):
        return any(has_tensor(one) for one in value)
    return isinstance(value, torch.Tensor)


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=_META
        )
    if isinstance(value, list | tuple):
        return type(value)([_to_meta(one) for one in value])
    return value


def _layouts(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return Layout(tuple(result.shape), result.stride(), result.dtype)
    if isinstance(result, list | tuple):
        return type(result)([_layouts(one) for one in result])
    return result
