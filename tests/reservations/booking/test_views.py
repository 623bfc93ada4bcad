"""The calendar's, a reservation's and the standing's pages."""

import csv
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from reservations.models import Account, LedgerEntry, Membership, SitePolicy
from tests.factories import (
    make_account,
    make_gpus,
    make_membership,
    make_reservation,
    make_user,
)

pytestmark = pytest.mark.django_db

HOUR = 3600


@pytest.fixture
def tree(db) -> Account:
    """The institution above both groups."""
    root = make_account("uni", title="University")
    for name in ("vision", "nlp"):
        account = make_account(name)
        account.parent = root
        account.save()
    return root


def as_user(user) -> Client:
    client = Client()
    client.force_login(user)
    return client


def charge(reservation, gpu_seconds: int, **fields: object) -> LedgerEntry:
    fields.setdefault("at", timezone.now())
    fields.setdefault("reason", "held to the end")
    fields.setdefault("kind", LedgerEntry.Kind.CHARGE)
    return LedgerEntry.objects.create(
        membership=reservation.membership,
        reservation=reservation,
        gpu_seconds=gpu_seconds,
        **fields,
    )


# --- access
# ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/calendar/", "/standing/", "/standing/ledger.csv", "/reservations/1/"]
)
def test_whoever_is_not_signed_in_is_sent_to_the_login(client, path):
    answer = client.get(path)
    assert answer.status_code == 302
    assert answer["Location"].startswith("/login/")


@pytest.mark.once
@pytest.mark.parametrize("path", ["calendar/", "standing/", "standing/ledger.csv"])
def test_pages_are_only_read(alice, path):
    client = as_user(alice)
    assert client.head(f"/{path}").status_code == 200
    for method in (client.post, client.put, client.delete):
        assert method(f"/{path}").status_code == 405


@pytest.mark.once
def test_bob_sees_alices_reservation_because_they_share_a_group(tree, alice, bob):
    made = make_reservation(alice, purpose="sweep")
    answer = as_user(bob).get(f"/reservations/{made.pk}/")
    assert answer.status_code == 200
    assert "sweep" in answer.text
    assert 'data-act="cancel"' not in answer.text
    assert "ledger-title" not in answer.text


@pytest.mark.once
def test_where_names_are_hidden_the_groups_page_of_it_has_none(tree, alice, bob):
    SitePolicy.objects.update_or_create(pk=1, defaults={"names_visible": False})
    row = make_reservation(alice, gpus=make_gpus(1), purpose="thesis of Alice")
    path = f"/reservations/{row.pk}/"
    assert b"lice" not in as_user(bob).get(path).content
    assert b"thesis of Alice" in as_user(alice).get(path).content


def test_carol_cannot_see_bobs_reservation(tree, bob, carol):
    made = make_reservation(bob)
    assert as_user(carol).get(f"/reservations/{made.pk}/").status_code == 404


@pytest.mark.once
def test_the_operator_and_the_head_above_see_a_reservation_with_its_ledger(
    tree, alice, omar
):
    made = make_reservation(alice)
    charge(made, HOUR)
    helen = make_user("helen")
    make_membership(helen, tree, is_head=True)
    for user in (omar, helen):
        answer = as_user(user).get(f"/reservations/{made.pk}/")
        assert answer.status_code == 200
        assert "held to the end" in answer.text


@pytest.mark.once
def test_the_owners_page_offers_what_can_still_be_done(tree, alice):
    client = as_user(alice)
    booked = make_reservation(alice, start=timezone.now() + timedelta(hours=2))
    running = make_reservation(alice, state="active")
    over = make_reservation(alice, state="ended")
    pages = [client.get(f"/reservations/{r.pk}/").text for r in (booked, running, over)]
    assert 'data-act="cancel"' in pages[0]
    assert 'data-act="release"' in pages[1]
    assert 'data-act="keep"' in pages[1]
    assert "data-act" not in pages[2]


def test_the_decision_is_told_in_words(tree, alice):
    decision = {
        "rule": "2 flex",
        "why_not_firm": {
            "code": "quota-exceeded",
            "would_hold_gpu_seconds": 46 * HOUR,
            "quota_gpu_seconds": 40 * HOUR,
        },
        "quotas": [
            {
                "account": "Vision",
                "quota_gpu_seconds": 40 * HOUR,
                "held_gpu_seconds": 34 * HOUR,
                "from": "2026-03-03T09:00:00+00:00",
            }
        ],
    }
    made = make_reservation(alice, kind="flex", decision=decision)
    text = as_user(alice).get(f"/reservations/{made.pk}/").text
    assert "the total of 7 days to 46 credits. The quota is 40 credits." in text
    assert "34 of" in text
    assert "Tue 3 Mar 09:00" in text


@pytest.mark.once
def test_a_decision_without_reasons_does_not_break_the_page(tree, alice):
    made = make_reservation(alice, decision={"quotas": [], "why_not_firm": None})
    answer = as_user(alice).get(f"/reservations/{made.pk}/")
    assert answer.status_code == 200
    assert "No reason was recorded." in answer.text


# --- the calendar's address -----------------------------------------------------------


def draft_of(answer) -> dict | None:
    return answer.context["config"]["draft"]


def test_the_plan_page_fills_a_draft(tree, alice):
    gpus = make_gpus(2)
    query = (
        f"gpus={gpus[0].pk},{gpus[1].pk}&start=2026-11-21T14:00:00Z"
        "&end=2026-11-21T18:00:00Z&purpose=train&plan=7"
    )
    answer = as_user(alice).get(f"/calendar/?{query}")
    assert draft_of(answer) == {
        "gpu_ids": [gpus[0].pk, gpus[1].pk],
        "start": "2026-11-21T14:00",
        "end": "2026-11-21T18:00",
        "purpose": "train",
        "plan": 7,
    }


def test_one_gpu_of_the_board_fills_a_draft(tree, alice):
    [gpu] = make_gpus(1)
    assert draft_of(as_user(alice).get(f"/calendar/?gpu={gpu.pk}"))["gpu_ids"] == [
        gpu.pk
    ]


def test_a_plain_address_has_no_draft(tree, alice):
    assert draft_of(as_user(alice).get("/calendar/?view=week&date=2026-11-21")) is None


def test_times_of_the_address_are_shown_by_the_sites_clock(tree, alice, settings):
    settings.TIME_ZONE = "Europe/Berlin"
    answer = as_user(alice).get("/calendar/?start=2026-11-21T14:00:00Z")
    assert draft_of(answer)["start"] == "2026-11-21T15:00"


@pytest.mark.once
@pytest.mark.parametrize(
    "query",
    [
        "gpu=x",
        "gpu=-1",
        "gpu=99999999999999999999999",
        "gpus=1,,x",
        "gpus=" + "9" * 400,
        "gpus=99999999",
        "start=yesterday",
        "start=0001-01-01T00:00:00%2B14:00",
        "end=9999-12-31T23:59:59-14:00",
        "start=2026-11-21T14:00Z&end=2026-11-21T13:00Z",
        "plan=x",
        "purpose=" + "p" * 500,
        "purpose=%00",
        "view=%27%3B--&date=2026-02-31&min_gib=NaN",
        "gpu=%ff%fe",
    ],
)
def test_a_bad_address_opens_the_calendar_all_the_same(tree, alice, query):
    assert as_user(alice).get(f"/calendar/?{query}").status_code == 200


def test_what_was_not_understood_is_named(tree, alice):
    answer = as_user(alice).get("/calendar/?gpus=a,b&start=soon")
    assert "“gpus” in the page&#x27;s address was not understood" in answer.text
    assert "“start” in the page&#x27;s address was not understood" in answer.text


def test_somebody_in_no_group_may_look_but_is_told_why_not_book(db):
    answer = as_user(make_user("nina")).get("/calendar/")
    assert answer.status_code == 200
    assert "You are in no group yet" in answer.text


# --- standing -------------------------------------------------------------------------


@pytest.mark.once
def test_the_sentence_says_place_and_use_in_shares(tree, alice, bob, carol):
    charge(make_reservation(alice, state="ended"), 30 * HOUR)
    charge(make_reservation(bob, state="ended"), 10 * HOUR)
    charge(make_reservation(carol, state="ended"), 50 * HOUR)
    text = as_user(alice).get("/standing/").text
    assert "You are 2nd of 3." in text
    assert "Vision has used 0.9× its share; you 1.5× of yours." in text


@pytest.mark.once
def test_the_page_says_what_would_move_one_up(tree, alice, bob):
    charge(make_reservation(alice, state="ended"), 30 * HOUR)
    charge(make_reservation(bob, state="ended"), 10 * HOUR)
    text = as_user(alice).get("/standing/").text
    assert "You would pass Bob with 20 credits" in text


@pytest.mark.once
def test_where_names_are_hidden_the_rival_has_none(tree, alice, bob):
    SitePolicy.objects.update_or_create(pk=1, defaults={"names_visible": False})
    charge(make_reservation(bob, state="ended"), 10 * HOUR)
    charge(make_reservation(alice, state="ended"), 30 * HOUR)
    text = as_user(alice).get("/standing/").text
    assert "would pass a member with" in text
    assert "Bob" not in text


@pytest.mark.once
def test_the_first_of_all_is_told_so(tree, alice, bob):
    charge(make_reservation(bob, state="ended"), 10 * HOUR)
    assert "Nobody is served before you." in as_user(alice).get("/standing/").text


@pytest.mark.once
def test_the_band_has_fourteen_days_to_book_into(tree, alice):
    answer = as_user(alice).get("/standing/")
    [chart] = answer.context["charts"]
    assert len(chart.days) == 14
    assert all(day.held_ratio == 0 for day in chart.days)
    assert set(chart.held.partition("V")[2].split("H")[0].split()) == {"100"}


def test_somebody_in_no_group_has_a_page_without_standing(db):
    answer = as_user(make_user("nina")).get("/standing/")
    assert answer.status_code == 200
    assert "you have no rank" in answer.text


def test_a_head_chooses_an_account_and_sees_its_ledger(tree, alice, carol):
    heidi = make_user("heidi")
    make_membership(heidi, "vision", is_head=True)
    vision = Account.objects.get(name="vision")
    nlp = Account.objects.get(name="nlp")
    charge(make_reservation(alice, state="ended"), 30 * HOUR, reason="alice trained")
    client = as_user(heidi)
    page = client.get(f"/standing/?account={vision.pk}").text
    assert "Vision has used" in page
    assert "alice trained" in page
    assert client.get(f"/standing/?account={nlp.pk}").status_code == 404
    lines = client.get(f"/standing/ledger.csv?account={vision.pk}").text.splitlines()
    assert len(lines) == 2


@pytest.mark.once
def test_a_student_cannot_choose_an_account_or_another_member(tree, alice, bob, carol):
    client = as_user(carol)
    vision = Account.objects.get(name="vision")
    bobs = Membership.objects.get(user=bob)
    for query in (f"account={vision.pk}", f"membership={bobs.pk}"):
        assert client.get(f"/standing/?{query}").status_code == 404
        assert client.get(f"/standing/ledger.csv?{query}").status_code == 404
    own = as_user(bob).get(f"/standing/?membership={bobs.pk}")
    assert own.status_code == 200


@pytest.mark.once
def test_the_operator_sees_a_member_as_the_member_is_called(tree, alice, omar):
    membership = Membership.objects.get(user=alice)
    text = as_user(omar).get(f"/standing/?membership={membership.pk}").text
    assert "Alice is 1st of 1." in text
    assert "You are" not in text


@pytest.mark.once
def test_carols_ledger_has_none_of_bobs_rows(tree, bob, carol):
    charge(make_reservation(bob, state="ended"), HOUR, reason="bobs own")
    charge(make_reservation(carol, state="ended"), HOUR, reason="carols own")
    client = as_user(carol)
    for text in (
        client.get("/standing/").text,
        client.get("/standing/ledger.csv").text,
    ):
        assert "carols own" in text
        assert "bobs own" not in text


def test_the_ledger_is_paged_and_filtered(tree, alice):
    made = make_reservation(alice)
    for number in range(30):
        kind = LedgerEntry.Kind.HOLD if number % 2 else LedgerEntry.Kind.CHARGE
        charge(made, HOUR, kind=kind)
    client = as_user(alice)
    assert "page 1 of 2, 30 rows" in client.get("/standing/").text
    assert "page 2 of 2" in client.get("/standing/?page=2").text
    assert "page 2 of 2" in client.get("/standing/?page=999").text
    assert "15 rows" in client.get("/standing/?kind=charge").text


def test_a_formula_in_a_reason_is_tamed_in_the_csv(tree, alice):
    charge(
        make_reservation(alice, state="ended"),
        -5,
        reason='=HYPERLINK("http://evil.example")',
    )
    text = as_user(alice).get("/standing/ledger.csv").text
    [_head, row] = csv.reader(text.splitlines())
    assert row[-1].startswith("'=")
    assert row[2] == "-5"


@pytest.mark.once
@pytest.mark.parametrize(
    "query",
    [
        "page=x",
        "page=-1",
        "page=0",
        "kind=all",
        "account=x",
        "membership=9e9",
        "page=1e3",
    ],
)
def test_a_bad_standing_address_is_not_an_error(tree, alice, query):
    client = as_user(alice)
    assert client.get(f"/standing/?{query}").status_code == 200
    assert client.get(f"/standing/ledger.csv?{query}").status_code == 200


# --- cost -----------------------------------------------------------------------------


def queries_of(client, path, django_assert_max_num_queries, most: int) -> None:
    client.get(path)
    with django_assert_max_num_queries(most):
        assert client.get(path).status_code == 200


@pytest.mark.once
def test_the_calendar_costs_a_fixed_number_of_queries(
    tree, alice, django_assert_max_num_queries
):
    for _ in range(20):
        make_reservation(alice)
    queries_of(as_user(alice), "/calendar/", django_assert_max_num_queries, 11)


@pytest.mark.once
def test_a_reservations_page_costs_a_fixed_number_of_queries(
    tree, alice, django_assert_max_num_queries
):
    made = make_reservation(alice, make_gpus(4))
    for _ in range(10):
        charge(made, HOUR)
    path = f"/reservations/{made.pk}/"
    queries_of(as_user(alice), path, django_assert_max_num_queries, 21)


@pytest.mark.once
def test_the_standing_page_does_not_ask_once_per_member_or_row(
    tree, alice, django_assert_max_num_queries
):
    for number in range(20):
        member = make_user(f"member{number}")
        make_membership(member, "vision")
        charge(make_reservation(member, state="ended"), HOUR)
    charge(make_reservation(alice, state="ended"), 30 * HOUR)
    queries_of(as_user(alice), "/standing/", django_assert_max_num_queries, 50)
