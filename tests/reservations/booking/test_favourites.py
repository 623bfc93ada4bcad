"""Stars: on a GPU or a class, listed first, and taken first where equally good."""

import pytest

from reservations.booking.favourites import favourite_gpus, star_class, star_gpu
from reservations.booking.slot_search import find_slots
from reservations.models import Favourite
from reservations.rules import errors
from tests.factories import make_gpu, make_node, make_pool
from tests.reservations.calling import Caller
from tests.reservations.conftest import HOUR, NOW


def first_found(user) -> tuple[int, ...]:
    found = find_slots(
        user=user,
        membership=None,
        count=1,
        min_memory_bytes=0,
        duration_seconds=2 * HOUR,
        now=NOW,
    )
    return found[0].gpu_ids


def test_a_starred_gpu_is_taken_first_where_equally_good(lab, alice, bob) -> None:
    third = lab.gpus[2]
    star_gpu(user=alice, gpu_id=third.pk, wanted=True)
    star_gpu(user=alice, gpu_id=third.pk, wanted=True)
    assert Favourite.objects.count() == 1
    assert first_found(alice) == (third.pk,)
    assert first_found(bob) == (lab.gpus[0].pk,)
    star_gpu(user=alice, gpu_id=third.pk, wanted=False)
    assert first_found(alice) == (lab.gpus[0].pk,)


def test_a_star_does_not_waste_a_larger_gpu(lab, alice) -> None:
    large = make_gpu(lab.gpus[0].node, memory_total_bytes=160 * 2**30)
    large.pool = make_pool("NVIDIA H200", weight=20)
    large.save()
    star_gpu(user=alice, gpu_id=large.pk, wanted=True)
    assert first_found(alice) == (lab.gpus[0].pk,)


def test_a_class_stars_all_of_its_gpus(lab, alice) -> None:
    pool = make_pool("NVIDIA A30", weight=3)
    other = make_gpu(make_node("node-b"), pool=pool)
    star_class(user=alice, gpu_class="NVIDIA A30", wanted=True)
    assert favourite_gpus(alice.pk) == {other.pk}
    star_class(user=alice, gpu_class="NVIDIA A30", wanted=False)
    assert favourite_gpus(alice.pk) == frozenset()
    with pytest.raises(errors.NotFound):
        star_class(user=alice, gpu_class="NVIDIA Z1", wanted=True)


@pytest.mark.once
def test_the_api_stars_and_the_calendar_lists_it(lab, alice, bob) -> None:
    ask, gpu = Caller(alice), lab.gpus[1]
    assert ask("PUT", "/favourites", {"gpu": gpu.pk}).body == {"gpu_ids": [gpu.pk]}
    span = "?start=2026-03-02T00:00:00Z&end=2026-03-03T00:00:00Z"
    liked = {
        one["id"]: one["favourite"]
        for one in ask("GET", f"/calendar{span}").body["gpus"]
    }
    assert [pk for pk, on in liked.items() if on] == [gpu.pk]
    theirs = Caller(bob)("GET", f"/calendar{span}").body["gpus"]
    assert not any(one["favourite"] for one in theirs)
    assert ask("PUT", "/favourites", {"gpu": 10**9}).status_code == 404
    assert ask("PUT", "/favourites", {"gpu_class": "none"}).status_code == 404
    assert ask("PUT", "/favourites", {"gpu": "1"}).status_code == 422
