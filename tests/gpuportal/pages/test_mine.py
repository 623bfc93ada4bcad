"""My reservations: the list, its reader, and the links to it."""

from datetime import timedelta

import pytest
from django.utils import timezone

from placement.models import Job
from reservations.rules.lifecycle import State
from tests.factories import (
    PASSWORD,
    make_gpus,
    make_membership,
    make_node,
    make_reservation,
    make_user,
)

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def page_for(client, user, path: str = "/mine/") -> str:
    client.force_login(user)
    answer = client.get(path)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.fixture
def gpus():
    return make_gpus(2, make_node("node-a"))


@pytest.mark.once
def test_a_newcomer_is_told_three_steps(client, alice, gpus):
    page = page_for(client, alice)
    assert "Welcome, Alice" in page
    assert "Three steps take you to a GPU" in page
    assert 'data-term="flex"' in page


@pytest.mark.once
def test_a_person_without_a_group_is_told_whom_to_ask(client, db):
    page = page_for(client, make_user("lone"))
    assert "You are in no group yet, so you cannot book." in page


@pytest.mark.once
def test_what_runs_comes_next_and_is_over_is_listed_to_its_owner_only(
    client, alice, bob, gpus
):
    now = timezone.now().replace(second=0, microsecond=0)
    runs = make_reservation(
        alice, gpus[:1], now - HOUR, now + HOUR, state=State.ACTIVE, purpose="run one"
    )
    ahead = make_reservation(alice, gpus, now + 30 * HOUR, now + 32 * HOUR)
    gone = make_reservation(
        alice, gpus[:1], now - 5 * HOUR, now - 4 * HOUR, state=State.ENDED
    )
    page = page_for(client, alice)
    for row in (runs, ahead, gone):
        assert f"/reservations/{row.pk}/" in page
    assert "1 × NVIDIA A100 80GB on node-a" in page
    assert "2 × NVIDIA A100 80GB on node-a" in page
    assert f'data-act="release" data-id="{runs.pk}"' in page
    assert f'data-act="cancel" data-id="{ahead.pk}"' in page
    assert "2 GPU-hours × 10 (NVIDIA A100 80GB) = 20 credits" in page
    assert f"/reservations/{runs.pk}/" not in page_for(client, bob)


def test_the_past_is_filtered_and_paged(client, alice, gpus):
    now = timezone.now()
    for number in range(20):
        begin = now - (10 + number) * 24 * HOUR
        make_reservation(
            alice,
            gpus[:1],
            begin,
            begin + HOUR,
            state=State.CANCELLED if number == 3 else State.ENDED,
        )
    page = page_for(client, alice)
    assert "1 to 15 of 20" in page
    assert "16 to 20 of 20" in page_for(client, alice, "/mine/?page=2")
    cancelled = page_for(client, alice, "/mine/?state=cancelled")
    assert cancelled.count("state state-cancelled") == 1
    assert "1 to 15 of" not in cancelled
    assert page_for(client, alice, "/mine/?state=nonsense&page=x")


@pytest.mark.once
def test_the_steps_name_node_gpus_and_ssh_only_where_the_site_allows_it(
    client, alice, gpus
):
    now = timezone.now()
    made = make_reservation(alice, gpus, now - HOUR, now + HOUR, state=State.ACTIVE)
    page = page_for(client, alice)
    assert "node-a, GPU 0, 1" in page
    assert "ssh" not in page
    assert "gp.py run" not in page  # no isolation: own scripts are refused there
    node = gpus[0].node
    node.ssh_address, node.isolation = "node-a.lab.example", "systemd"
    node.save()
    page = page_for(client, alice)
    assert "you need a Unix account" in page
    assert f"gp.py run train.py --reservation {made.pk}" in page
    alice.unix_user = "alice"
    alice.save()
    for path in ("/mine/", f"/reservations/{made.pk}/"):
        page = page_for(client, alice, path)
        assert "ssh alice@node-a.lab.example" in page
        assert "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,1" in page


def test_signing_in_leads_students_to_their_own_page_and_the_operator_to_the_board(
    client, alice, omar
):
    for name, path in (("alice", "/mine/"), ("omar", "/")):
        answer = client.post("/login/", {"username": name, "password": PASSWORD})
        assert answer.headers["Location"] == path
        client.logout()


@pytest.mark.once
@pytest.mark.parametrize(
    "query", ["my reservations", "{pk}", "#{pk}", "reservation {pk}"]
)
def test_search_finds_the_page_and_reservations_by_number(client, alice, gpus, query):
    now = timezone.now()
    made = make_reservation(alice, gpus[:1], now + HOUR, now + 2 * HOUR)
    client.force_login(alice)
    answer = client.get(
        "/search",
        {"q": query.format(pk=made.pk)},
        headers={"Accept": "application/json"},
    )
    urls = [hit["url"] for hit in answer.json()["hits"]]
    assert ("/mine/" if "my" in query else f"/reservations/{made.pk}/") in urls


def test_search_does_not_find_strangers_reservations(client, alice, carol, gpus):
    now = timezone.now()
    made = make_reservation(carol, gpus[:1], now + HOUR, now + 2 * HOUR)
    client.force_login(alice)
    found = client.get(
        "/search", {"q": str(made.pk)}, headers={"Accept": "application/json"}
    ).json()
    assert not [hit for hit in found["hits"] if hit["kind"] == "reservation"]


@pytest.mark.once
def test_the_page_does_not_ask_once_per_reservation(
    client, alice, gpus, django_assert_max_num_queries
):
    now = timezone.now()
    make_membership(alice, "nlp")
    for number in range(12):
        begin = now - (10 + number) * 24 * HOUR
        make_reservation(alice, gpus, begin, begin + HOUR, state=State.ENDED)
    for number in range(4):
        begin = now + (10 + 3 * number) * HOUR
        make_reservation(alice, gpus, begin, begin + HOUR)
    client.force_login(alice)
    with django_assert_max_num_queries(60):
        client.get("/mine/")
    assert not Job.objects.exists()
