"""Which GPUs of a node the reservations have that the engine only counts. Pure.

Before a job starts, a reservation of some GPUs of a node has any of them in the
calendar. Then the engine says which ones it has. The GPUs of a node are alike, so all
reservations exchange them by one permutation, which keeps them apart.
"""

from collections.abc import Collection, Mapping, Sequence


def exchange(
    gpus: Sequence[int], held: Mapping[int, Collection[int]], marks: Mapping[int, int]
) -> dict[int, int]:
    """Return the new GPU of each GPU of a node that changes, by the old one.

    Args:
        gpus: all GPUs of one type of the node.
        held: GPUs of the reservations that run now, by reservation. They share none.
        marks: the reservation that has a GPU in the engine, by GPU. Reservations that
            do not run now are left out, and so are GPUs beyond the booked number.

    >>> exchange([1, 2, 3, 4], {7: [1, 2], 8: [3]}, {3: 7, 4: 7, 1: 8})
    {1: 3, 2: 4, 3: 1, 4: 2}
    >>> exchange([1, 2], {7: [1]}, {1: 7})
    {}
    """
    moved: dict[int, int] = {}
    for reservation, own in sorted(held.items()):
        its = [gpu for gpu in gpus if marks.get(gpu) == reservation]
        stay = set(own) & set(its)
        moved |= {gpu: gpu for gpu in stay}
        news = [gpu for gpu in its if gpu not in stay]
        olds = [gpu for gpu in gpus if gpu in own and gpu not in stay]
        moved |= dict(zip(olds, news, strict=False))
    taken = set(moved.values())
    moved |= {gpu: gpu for gpu in gpus if gpu not in moved and gpu not in taken}
    taken = set(moved.values())
    left = [gpu for gpu in gpus if gpu not in taken]
    olds = [gpu for gpu in gpus if gpu not in moved]
    moved |= dict(zip(olds, left, strict=True))
    return {old: moved[old] for old in gpus if moved[old] != old}
