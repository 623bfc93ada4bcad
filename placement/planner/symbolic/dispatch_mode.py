"""Return the result of every operator of a step without running it.

Views run for real, because they only compute layouts, and keep a storage's owners
right. Operators that write into an argument return it. All others return phantoms of
the layout that torch's meta kernels name. Small tensors of whole numbers, such as
positions, are real and are computed, so that code may branch on them.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from placement.planner.symbolic import phantom
from placement.planner.symbolic.shapes import Layout, ShapeBook
from placement.planner.symbolic.storage_tracker import Tracker

Way = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

MOST_REAL_ELEMENTS = 2**16
MOST_REAL_FLOATS = 16
"""Most elements of a tensor that is really made: whole numbers, and scalars."""
SHARING = {
    # Their schemas promise nothing, but the results share the argument's storage.
    "aten::_unsafe_view",
    "aten::unsafe_split",
    "aten::unsafe_split_with_sizes",
    "aten::unsafe_chunk",
}


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor of an operator's arguments."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)


class StepMode(TorchDispatchMode):
    """Inside it, tensors are phantoms and the tracker sees every storage."""

    def __init__(self, tracker: Tracker) -> None:
        super().__init__()
        self.tracker = tracker
        self.book = ShapeBook()
        self.special: dict[str, Way] = {}
        """Name of the operator ("aten::nonzero") -> a function with a special
        result.
        """
        self._ways: dict[Any, Way] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Return the result of one operator."""
        way = self._ways.get(func)
        if way is None:
            way = self._ways[func] = self._counted(func, self._choose(func))
        return way(func, args, kwargs or {})

    def _counted(self, func: Any, way: Way) -> Way:
        """Return a way that also counts the operations of a product or convolution."""
        formula = flop_registry.get(func.overloadpacket)
        if formula is None:
            return way

        def counted(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            made = way(func, args, kwargs)
            self.tracker.flops += formula(*args, **kwargs, out_val=made)
            return made

        return counted

    def _choose(self, func: Any) -> Way:
        if func._schema.name in self.special:
            return self.special[func._schema.name]
        return self._ordinary_way(func)

    def ordinary(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of an operator without a special function."""
        return self._ordinary_way(func)(func, args, kwargs)

    def _ordinary_way(self, func: Any) -> Way:
        schema = func._schema
        kinds = [str(a.type) for a in (*schema.arguments, *schema.returns)]
        if not any("Tensor" in kind for kind in kinds):
            return _run
        returned = [one.alias_info for one in schema.returns]
        if schema.name in SHARING:
            return self._view
        if not returned or all(alias and alias.is_write for alias in returned):
            return self._write_in_place
        if any(returned):
            return self._view
        return self._new_result

    def _view(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            self.tracker.count_storage(result)
        return result

    def _write_in_place(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        given = [*tensors_in(args), *tensors_in(tuple(kwargs.values()))]
        if not any(map(phantom.is_phantom, given)):
            return func(*args, **kwargs)
        written = [
            kwargs[one.name] if one.name in kwargs else args[place]
            for place, one in enumerate(func._schema.arguments)
            if one.alias_info is not None
            and one.alias_info.is_write
            and (one.name in kwargs or place < len(args))
        ]
        for one in tensors_in(written):
            if not phantom.is_phantom(one):
                phantom.forget(one)
        count = len(func._schema.returns)
        if count == 0:
            return None
        return written[0] if count == 1 else tuple(written[:count])

    def _new_result(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        layouts = self.book.answer(func, args, kwargs)
        if self._may_run(layouts, args, kwargs):
            result = func(*args, **kwargs)
            for one in tensors_in(result):
                self.tracker.count_storage(one)
            return result
        return self.made(layouts)

    def _may_run(self, layouts: Any, args: Any, kwargs: Any) -> bool:
        """Return whether an operator is small and all its values are known."""
        given = [*tensors_in(args), *tensors_in(tuple(kwargs.values()))]
        most = MOST_REAL_ELEMENTS
        for one in given:
            if phantom.is_phantom(one):
                return False
        for layout in _each(layouts):
            if not given and layout.dtype.is_floating_point:
                most = MOST_REAL_FLOATS
            if phantom.numel(layout.shape) > most:
                return False
        return True

    def made(self, layouts: Any) -> Any:
        """Replace layouts by phantoms. Other returned values stay."""
        if isinstance(layouts, Layout):
            tensor = phantom.make(*layouts)
            self.tracker.count_storage(tensor)
            return tensor
        if isinstance(layouts, list | tuple):
            return type(layouts)([self.made(one) for one in layouts])
        return layouts


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


def _each(layouts: Any) -> Iterator[Layout]:
    if isinstance(layouts, Layout):
        yield layouts
    elif isinstance(layouts, list | tuple):
        for one in layouts:
            yield from _each(one)
