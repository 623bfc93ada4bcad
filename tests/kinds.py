"""Hypothesis strategies of the codec: values of a kind, and JSON that is nearly one."""

import copy
from pathlib import Path
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st
from msgspec import inspect

from telemetry.protocol.codec import Malformed
from telemetry.protocol.coded_error import CodedError

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner)
    ),
    max_leaves=6,
)
"""Any JSON."""
_WORDS = st.text(alphabet=st.characters(categories=["L", "N", "P"]), max_size=300)


def values_of(kind: Any, /, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return values of a Struct or a dataclass, within the bounds of its fields.

    Args:
        fields: strategies of those fields that rules between fields bind.
    """
    return _of_fields(inspect.type_info(kind), fields)


def _of(info: inspect.Type) -> st.SearchStrategy[Any]:
    if isinstance(info, inspect.Metadata):
        return _of(info.type)
    if isinstance(info, inspect.StructType | inspect.DataclassType):
        return _of_fields(info, {})
    if isinstance(info, inspect.UnionType):
        return st.one_of(*[_of(one) for one in info.types])
    return _of_scalar(info)


def _of_fields(info: Any, given: dict[str, Any]) -> st.SearchStrategy[Any]:
    needed, free = dict(given), {}
    for one in info.fields:
        if one.name not in given:
            (needed if one.required else free)[one.name] = _of(one.type)
    fields = st.fixed_dictionaries(needed, optional=free)
    return fields.map(lambda values: _made(info.cls, values))


def _made(kind: type, given: dict[str, Any]) -> Any:
    try:
        return kind(**given)
    except (Malformed, CodedError):  # a rule between fields
        reject()


def _of_scalar(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            least = info.ge if info.ge is not None else -(2**53)
            least = least if info.gt is None else info.gt + 1
            if info.lt is not None:
                return st.integers(least, info.lt - 1)
            return st.integers(least, info.le if info.le is not None else 2**53)
        case inspect.FloatType():
            return st.floats(
                min_value=info.gt if info.gt is not None else info.ge,
                max_value=info.lt if info.lt is not None else info.le,
                exclude_min=info.gt is not None,
                exclude_max=info.lt is not None,
                allow_nan=False,
                allow_infinity=False,
            )
        case inspect.StrType():
            if info.pattern is not None:
                return st.from_regex(info.pattern, fullmatch=True)
            least, most = info.min_length or 0, info.max_length or 60
            return _WORDS.map(lambda text: text[:most].ljust(least, "x"))
        case inspect.EnumType():
            return st.sampled_from(info.cls)
        case inspect.LiteralType():
            return st.sampled_from(info.values)
    return _of_group(info)


def _of_group(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.VarTupleType() | inspect.ListType():
            least, most = info.min_length or 0, min(info.max_length or 4, 4)
            made = st.lists(_of(info.item_type), min_size=least, max_size=most)
            return made.map(tuple) if isinstance(info, inspect.VarTupleType) else made
        case inspect.TupleType():
            return st.tuples(*[_of(one) for one in info.item_types])
        case inspect.DictType():
            return st.dictionaries(_of(info.key_type), _of(info.value_type), max_size=3)
        case inspect.AnyType():
            return JSON
        case inspect.CustomType():
            return st.just(Path("/a/b"))
    raise TypeError(f"no strategy for {info}")


@st.composite
def mutations(draw: st.DrawFn, body: Any) -> Any:
    """Return JSON with one value anywhere in it removed or replaced."""
    root = {"root": copy.deepcopy(body)}
    places: list[tuple[Any, Any]] = [(root, "root")]
    for holder, key in places:
        inner = holder[key]
        if isinstance(inner, dict):
            places += [(inner, name) for name in inner]
        elif isinstance(inner, list):
            places += [(inner, number) for number in range(len(inner))]
    holder, key = draw(st.sampled_from(places))
    if key != "root" and draw(st.booleans()):
        del holder[key]
    else:
        huge = st.sampled_from([-1, 2**70, 1e300, "x" * 9_000, "\x1b", "\0", [], {}])
        holder[key] = draw(JSON | huge)
    return root["root"]
