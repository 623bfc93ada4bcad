"""``Idempotency-Key``: the same request again, another request, a restart."""

import json
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from placement.models import Job
from reservations.accounts.erasure import _drop_own
from reservations.models import RequestKey, Reservation
from reservations.models.request_key import KEPT
from reservations.rules.lifecycle import State
from reservations.tasks import roll_months
from reservations.web.request_keys import RUNNING
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement.lab import signed_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def gpu():
    (made,) = make_gpus(1, make_node("node-a"))
    return made


@pytest.fixture
def wish(gpu):
    start = timezone.now().replace(minute=0, second=0, microsecond=0)
    start += timedelta(hours=2)
    return {
        "gpu_ids": [gpu.pk],
        "start": start.isoformat(),
        "end": (start + timedelta(hours=1)).isoformat(),
    }


def post(user, path, body, key):
    return signed_in(user).post(
        f"/api/v1{path}",
        json.dumps(body),
        content_type="application/json",
        headers={"Idempotency-Key": key},
    )


@pytest.mark.once
def test_the_same_booking_is_made_once_and_answered_twice(alice, wish):
    first = post(alice, "/reservations", wish, '"one"')
    assert first.status_code == 201
    # The quotes of the draft are no part of the key.
    for key in ('"one"', "one"):
        again = post(alice, "/reservations", wish, key)
        assert (again.status_code, again.json()) == (201, first.json())
    assert Reservation.objects.count() == 1
    assert RequestKey.objects.get().key == "one"


@pytest.mark.once
def test_a_key_belongs_to_one_request_of_one_user(alice, bob, wish):
    assert post(alice, "/reservations", wish, "one").status_code == 201
    other = post(alice, "/reservations", wish | {"purpose": "more"}, "one")
    assert (other.status_code, other.json()["code"]) == (422, "key-reused")
    elsewhere = post(alice, "/waiting", wish, "one")
    assert (elsewhere.status_code, elsewhere.json()["code"]) in {
        (422, "key-reused"),
        (422, "invalid"),
    }
    theirs = post(bob, "/reservations", wish, "one")
    assert (theirs.status_code, theirs.json()["code"]) == (409, "gpu-taken")
    assert Reservation.objects.count() == 1


def test_a_refusal_is_not_kept(alice, gpu, wish):
    start = datetime.fromisoformat(wish["start"])
    taken = make_reservation(alice, [gpu], start, start + timedelta(hours=1))
    assert post(alice, "/reservations", wish, "one").status_code == 409
    assert not RequestKey.objects.exists()
    taken.allocations.all().delete()
    taken.delete()
    assert post(alice, "/reservations", wish, "one").status_code == 201


def test_a_request_without_an_answer_is_not_done_again(alice, wish):
    assert post(alice, "/reservations", wish, "one").status_code == 201
    row = RequestKey.objects.get()
    RequestKey.objects.update(status=None, answer="")
    running = post(alice, "/reservations", wish, "one")
    assert (running.status_code, running.json()["code"]) == (409, "request-running")
    assert running["Retry-After"] == "1"
    RequestKey.objects.update(sent_at=row.sent_at - RUNNING)
    lost = post(alice, "/reservations", wish, "one")
    assert (lost.status_code, lost.json()["code"]) == (409, "request-interrupted")
    assert Reservation.objects.count() == 1


@pytest.mark.once
@pytest.mark.parametrize("key", ["", '""', "with space", "é", "x" * 256, 'a"b'])
def test_an_invalid_key_is_named(alice, wish, key):
    answer = post(alice, "/reservations", wish, key)
    assert answer.status_code == 422
    assert answer.json()["fields"].keys() == {"Idempotency-Key"}
    assert not RequestKey.objects.exists()


@pytest.mark.once
def test_an_answer_is_kept_for_a_day(alice, bob, wish):
    assert post(alice, "/reservations", wish, "one").status_code == 201
    assert post(bob, "/reservations", wish, "two").status_code == 409
    roll_months()
    assert RequestKey.objects.count() == 1
    old = timezone.now() - KEPT - timedelta(seconds=1)
    RequestKey.objects.update(sent_at=old)
    # Before the task has deleted it, too: this is a new request.
    assert post(alice, "/reservations", wish, "one").status_code == 409
    assert not RequestKey.objects.exists()


def test_the_task_deletes_old_answers_and_an_erasure_all(alice, wish):
    assert post(alice, "/reservations", wish, "one").status_code == 201
    RequestKey.objects.update(sent_at=timezone.now() - KEPT - timedelta(seconds=1))
    roll_months()
    assert not RequestKey.objects.exists()
    assert post(alice, "/waiting", {"hours": 1}, "two").status_code == 201
    assert RequestKey.objects.count() == 1
    _drop_own(alice, timezone.now())
    assert not RequestKey.objects.exists()


@pytest.mark.once
def test_a_job_is_launched_once(alice, gpu):
    now = timezone.now()
    row = make_reservation(
        alice,
        [gpu],
        now - timedelta(hours=1),
        now + timedelta(hours=3),
        state=State.ACTIVE,
    )
    job = {"reservation": row.pk, "name": "try", "recipe": "burn-in"}
    first, again = (post(alice, "/jobs", job, "j") for _ in range(2))
    assert first.status_code == 201, first.json()
    assert first.json() == again.json()
    assert Job.objects.count() == 1
