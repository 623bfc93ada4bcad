"""Messages to holders: who may send them, and how many."""

from datetime import timedelta

import pytest
from django.test import Client

from reservations.models import Notice
from reservations.notifications.queries import notices_with_text
from reservations.notifications.text.sharing_text import CannotAsk
from reservations.rules import errors
from reservations.sharing.inquiry import MOST_A_DAY, ask_holder
from tests.factories import make_user
from tests.reservations.conftest import NOW, at


def ask(reservation, user, message="Could you free it?", now=NOW):
    return ask_holder(
        reservation_id=reservation.pk, user=user, message=message, now=now
    )


@pytest.mark.once
def test_the_holder_reads_who_asks_what(lab, alice, bob) -> None:
    made = lab.book(bob, lab.gpus[:1], at(12, day=4), 2)
    told = ask(made, alice)
    assert told.user == bob
    [info] = notices_with_text([told], bob)
    assert "Alice writes about your booking" in info.text
    assert info.text.endswith("“Could you free it?”")
    assert info.url == f"/reservations/{made.pk}/"


@pytest.mark.once
def test_one_message_an_hour_about_one_booking(lab, alice, bob) -> None:
    made = lab.book(bob, lab.gpus[:1], at(12, day=4), 2)
    ask(made, alice)
    with pytest.raises(CannotAsk, match="less than an hour"):
        ask(made, alice, now=NOW + timedelta(minutes=59))
    assert ask(made, alice, now=NOW + timedelta(minutes=61))


@pytest.mark.once
def test_ten_messages_a_day(lab, alice, bob) -> None:
    made = lab.book(bob, lab.gpus[:1], at(12, day=6), 2)
    for hour in range(MOST_A_DAY):
        ask(made, alice, now=NOW + timedelta(hours=2 * hour))
    with pytest.raises(CannotAsk, match="10 messages"):
        ask(made, alice, now=NOW + timedelta(hours=2 * MOST_A_DAY))
    assert Notice.objects.filter(kind="asked").count() == MOST_A_DAY


@pytest.mark.once
@pytest.mark.parametrize("message", ["", "   ", "\ufeff", "\u200b \u2060", "\u061c"])
def test_an_empty_message_is_not_sent(lab, alice, bob, message) -> None:
    made = lab.book(bob, lab.gpus[:1], at(12, day=4), 2)
    with pytest.raises(CannotAsk, match="write a message"):
        ask(made, alice, message)
    assert not Notice.objects.filter(kind="asked").exists()


@pytest.mark.once
@pytest.mark.parametrize("odd", ["\n", "\0", "\u2028", "\u2029", "\u202e", "\u2066"])
def test_a_message_is_one_line_that_nothing_turns_round(lab, alice, bob, odd) -> None:
    made = lab.book(bob, lab.gpus[:1], at(12, day=4), 2)
    client = Client()
    client.force_login(alice)
    answer = client.post(
        f"/api/v1/reservations/{made.pk}/ask",
        {"message": f"Please{odd}free it"},
        content_type="application/json",
    )
    assert answer.status_code == 422
    assert "message" in answer.json()["detail"]
    assert not Notice.objects.filter(kind="asked").exists()


@pytest.mark.once
def test_ones_own_booking_and_what_is_over_have_nobody_to_ask(lab, alice, bob) -> None:
    own = lab.book(alice, lab.gpus[:1], at(12, day=4), 2)
    with pytest.raises(CannotAsk, match="is yours"):
        ask(own, alice)
    made = lab.book(bob, lab.gpus[1:2], NOW, 2)
    made.state = "ended"
    made.save()
    with pytest.raises(CannotAsk, match="nobody holds"):
        ask(made, alice)


def test_who_is_in_no_group_cannot_write(lab, bob) -> None:
    made = lab.book(bob, lab.gpus[:1], at(12, day=4), 2)
    with pytest.raises(errors.NotAllowed):
        ask(made, make_user("stranger"))
