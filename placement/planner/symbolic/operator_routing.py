"""Operators whose result depends on values that phantoms do not have.

Experts of a mixture are chosen by a router's scores. The substitute is balanced: of T
tokens with k experts each, every one of E experts gets T x k / E. It follows from two
facts that are passed from operator to operator: an index that ``topk`` chose among E
candidates names one of E categories, and a mask made from such an index (``one_hot``,
``==``) is true for one in E. ``nonzero`` of the mask then has that many rows.

Tests that guard rare branches get the result of ordinary data: ``any`` of an unknown
mask is false, ``all`` is true, two unknown tensors are equal.
"""

import math
import weakref
from typing import Any

import torch

from placement.planner.symbolic import phantom
from placement.planner.symbolic.dispatch_mode import StepMode, tensors_in
from placement.planner.symbolic.shapes import Layout

Args = tuple[Any, ...]
Named = dict[str, Any]
MOST_KNOWN_ROWS = 4096
_CHOOSERS = ("aten::topk", "aten::argmax", "aten::multinomial", "aten::argsort")


class Facts:
    """Known values of phantoms, by storage."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[Any], float]] = {}

    def put(self, tensor: torch.Tensor, value: float) -> None:
        """Record a number about a tensor and all its views."""
        storage = tensor.untyped_storage()
        key = storage._cdata

        def gone(_: object) -> None:
            del self._kept[key]

        self._kept[key] = (weakref.ref(storage, gone), value)

    def get(self, tensor: torch.Tensor) -> float | None:
        """Return the number, or None."""
        found = self._kept.get(tensor.untyped_storage()._cdata)
        return found[1] if found else None


class Router:
    """The special functions of one StepMode."""

    def __init__(self, mode: StepMode) -> None:
        self.mode = mode
        self.categories = Facts()
        """Of an index: the number of candidates among which it was chosen."""
        self.density = Facts()
        """Of a mask: the share that is true."""
        mode.special |= {
            "aten::_local_scalar_dense": self.scalar,
            "aten::equal": self.equal,
            "aten::any": self.any,
            "aten::all": self.all,
            "aten::nonzero": self.nonzero,
            "aten::masked_select": self.masked_select,
            "aten::index": self.index,
            "aten::scatter_": self.scatter,
            "aten::eq": self.compare,
            "aten::_unique2": self.unique,
            "aten::unique_dim": self.unique,
            "aten::unique_consecutive": self.unique,
            "aten::bincount": self.bincount,
            "aten::repeat_interleave": self.repeat,
            "aten::_grouped_mm": self.grouped,
            **dict.fromkeys(_CHOOSERS, self.choose),
        }

    # --- single values -------------------------------------------------------------

    def scalar(self, func: Any, args: Args, named: Named) -> Any:
        """Return `.item()`: 1 for an unknown number, False for an unknown flag."""
        tensor = args[0]
        if not phantom.is_phantom(tensor):
            return func(*args, **named)
        if tensor.dtype == torch.bool:
            return False
        return 1.0 if tensor.dtype.is_floating_point else 1

    def equal(self, func: Any, args: Args, named: Named) -> Any:
        """Return `torch.equal`."""
        if any(map(phantom.is_phantom, args[:2])):
            return args[0].shape == args[1].shape
        return func(*args, **named)

    def any(self, func: Any, args: Args, named: Named) -> Any:
        """Return that no flag is set."""
        return self._flags(func, args, named, torch.zeros)

    def all(self, func: Any, args: Args, named: Named) -> Any:
        """Return that every flag is set."""
        return self._flags(func, args, named, torch.ones)

    def _flags(self, func: Any, args: Args, named: Named, make: Any) -> Any:
        if "out" in named or not phantom.is_phantom(args[0]):
            return self.mode.ordinary(func, args, named)
        layout = self.mode.book.answer(func, args, named)
        if phantom.numel(layout.shape) > MOST_KNOWN_ROWS:
            return self.mode.made(layout)
        flags = make(layout.shape, dtype=layout.dtype)
        self.mode.tracker.count_storage(flags)
        return flags

    # --- known facts about values
    # ------------------------------------------------------

    def choose(self, func: Any, args: Args, named: Named) -> Any:
        """Return an index chosen among the entries of one dimension."""
        result = self.mode.ordinary(func, args, named)
        source = args[0]
        place = 2 if func._schema.name == "aten::topk" else 1
        dim = named.get("dim", args[place] if len(args) > place else -1)
        if source.dim() and isinstance(dim, int) and not isinstance(dim, bool):
            for one in tensors_in(result):
                if one.dtype == torch.int64:
                    self.categories.put(one, source.shape[dim])
        return result

    def scatter(self, func: Any, args: Args, named: Named) -> Any:
        """Return `one_hot`'s scatter, which writes a 1 per index into zeros."""
        result = self.mode.ordinary(func, args, named)
        target, dim, index = args[0], args[1], args[2]
        if phantom.is_phantom(target) and index.dim() and index.numel():
            among = self.categories.get(index) or target.shape[dim]
            self.density.put(target, index.shape[dim] / among)
        return result

    def compare(self, func: Any, args: Args, named: Named) -> Any:
        """Return the comparison of an index with one category."""
        result = self.mode.ordinary(func, args, named)
        among = self.categories.get(args[0])
        if among and phantom.is_phantom(result):
            self.density.put(result, 1 / among)
        return result

    # --- numbers of rows -----------------------------------------------------------

    def _run_for_real(self, func: Any, args: Args, named: Named) -> Any:
        """Run an operator whose values are all known."""
        result = func(*args, **named)
        for one in tensors_in(result):
            self.mode.tracker.count_storage(one)
        return result

    def _rows(self, mask: torch.Tensor) -> int:
        if not phantom.is_phantom(mask):
            return int(torch.count_nonzero(mask))
        share = self.density.get(mask)
        return math.ceil(mask.numel() * (1.0 if share is None else share))

    def _index_rows(self, rows: int, columns: int) -> torch.Tensor:
        """Return row numbers, real if code may look at them one by one."""
        if columns == 1 and rows <= MOST_KNOWN_ROWS:
            made = torch.arange(rows).reshape(rows, 1)
            self.mode.tracker.count_storage(made)
            return made
        # nonzero returns a transposed tensor: each column is contiguous.
        return self.mode.made(Layout((rows, columns), (1, max(1, rows)), torch.int64))

    def nonzero(self, func: Any, args: Args, named: Named) -> Any:
        """Return `nonzero`, `torch.where(mask)`."""
        if not phantom.is_phantom(args[0]):
            return self._run_for_real(func, args, named)
        return self._index_rows(self._rows(args[0]), args[0].dim())

    def masked_select(self, func: Any, args: Args, named: Named) -> Any:
        """Return the entries under a mask."""
        source, mask = args[0], args[1]
        if not any(map(phantom.is_phantom, (source, mask))):
            return self._run_for_real(func, args, named)
        return self.mode.made(Layout((self._rows(mask),), (1,), source.dtype))

    def index(self, func: Any, args: Args, named: Named) -> Any:
        """Return `x[mask]`: a mask means the row numbers under it."""
        source, indices = args[0], args[1]
        masks = [one for one in tensors_in(indices) if one.dtype == torch.bool]
        if masks and not any(map(phantom.is_phantom, (source, *tensors_in(indices)))):
            return self._run_for_real(func, args, named)
        if not masks:
            return self.mode.ordinary(func, args, named)
        told: list[Any] = []
        for one in indices:
            if one is not None and one.dtype == torch.bool:
                rows = self._rows(one)
                told += [phantom.dense((rows,), torch.int64)] * one.dim()
            else:
                told.append(one)
        return self.mode.made(self.mode.book.answer(func, (source, told), named))

    def unique(self, func: Any, args: Args, named: Named) -> Any:
        """Return unique values: all entries differ, or all categories occur."""
        source = args[0]
        if not phantom.is_phantom(source):
            return self._run_for_real(func, args, named)
        count = int(self.categories.get(source) or source.numel())
        entries = self.mode.made(Layout((count,), (1,), source.dtype))
        inverse = self.mode.made(
            Layout(tuple(source.shape), source.stride(), torch.int64)
        )
        return entries, inverse, self.mode.made(Layout((count,), (1,), torch.int64))

    def bincount(self, func: Any, args: Args, named: Named) -> Any:
        """Return the counts of each category."""
        source = args[0]
        if not phantom.is_phantom(source):
            return self._run_for_real(func, args, named)
        least: Any = named.get("minlength", args[2] if len(args) > 2 else 0)
        count = max(int(self.categories.get(source) or 1), least)
        return self.mode.made(Layout((count,), (1,), torch.int64))

    def repeat(self, func: Any, args: Args, named: Named) -> Any:
        """Return `repeat_interleave` by a tensor of counts. Unknown counts are one."""
        counts = args[0]
        if func._overloadname != "Tensor":
            return self.mode.ordinary(func, args, named)
        if not phantom.is_phantom(counts):
            return self._run_for_real(func, args, named)
        total = named.get("output_size") or counts.numel()
        return self.mode.made(Layout((total,), (1,), torch.int64))

    def grouped(self, func: Any, args: Args, named: Named) -> Any:
        """Return products of groups of rows. torch's meta kernel supports only bf16."""
        one, two = args[0], args[1]
        given: Any = named.get("offs", args[2] if len(args) > 2 else None)
        shape: tuple[int, ...] = (one.shape[-2], two.shape[-1])
        if one.dim() == two.dim():
            groups = given.shape[0] if one.dim() == 2 else one.shape[0]
            shape = (groups, *shape)
        dtype = named.get("out_dtype") or one.dtype
        tensor = phantom.dense(shape, dtype)
        self.mode.tracker.count_storage(tensor)
        return tensor
