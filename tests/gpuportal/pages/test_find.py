"""The search of the top bar: results for each kind of user."""

import pytest
from django.test import Client

from gpuportal.pages.find import LONGEST_QUERY, PER_KIND, find
from placement.models import Job
from placement.protocol.job_lifecycle import JobState
from reservations.models import SitePolicy
from tests.factories import make_gpu, make_gpus, make_node, make_pool, make_reservation

pytestmark = pytest.mark.django_db


def kinds(query: str, user) -> set[str]:
    return {hit.kind for hit in find(query, user)}


def titles(query: str, user) -> list[str]:
    return [hit.title for hit in find(query, user)]


def make_job(owner, name: str) -> Job:
    reservation = make_reservation(owner)
    return Job.objects.create(
        reservation=reservation,
        owner=owner,
        name=name,
        kind=Job.Kind.RECIPE,
        node=make_node(),
        state=JobState.QUEUED,
    )


def test_a_gpu_is_found_by_node_and_index(alice):
    gpu = make_gpus(3, make_node("node-a"))[2]
    (hit,) = find("node-a:2", alice)
    assert (hit.kind, hit.title, hit.url) == ("gpu", "node-a:2", f"/gpus/{gpu.pk}/")


def test_a_gpu_is_found_by_class_and_by_uuid(alice):
    make_gpu(make_node("n"), pool=make_pool("H100-SXM5-80GB"), uuid="GPU-77ab")
    assert "n:0" in titles("h100", alice)
    assert "n:0" in titles("77ab", alice)


def test_a_node_is_found_and_leads_to_the_filtered_board(alice):
    make_node("tesla-01")
    (hit,) = [hit for hit in find("tesla", alice) if hit.kind == "node"]
    assert hit.url == "/?q=tesla-01"


def test_a_page_is_found_by_what_one_does_there(alice):
    assert "Board" in titles("tempera", alice)
    assert "Settings" in titles("token", alice)


def test_people_are_found_with_their_groups(alice, bob):
    (hit,) = [hit for hit in find("bob", alice) if hit.kind == "person"]
    assert (hit.title, hit.detail) == ("Bob", "Vision")


def test_carol_finds_nobody_where_names_are_hidden_but_herself(alice, carol):
    policy = SitePolicy.current()
    policy.names_visible = False
    policy.save()
    assert "person" not in kinds("alice", carol)
    assert "person" in kinds("carol", carol)


def test_the_operator_finds_people_where_names_are_hidden(alice, omar):
    policy = SitePolicy.current()
    policy.names_visible = False
    policy.save()
    assert "person" in kinds("alice", omar)


def test_who_left_is_not_found(alice, bob):
    bob.is_active = False
    bob.save()
    assert "person" not in kinds("bob", alice)


@pytest.mark.once
def test_alice_finds_her_job_by_name_and_number_and_carol_does_not(alice, carol):
    job = make_job(alice, "fine tune")
    for query in ("fine", f"#{job.pk}", str(job.pk)):
        assert f"#{job.pk} fine tune" in titles(query, alice)
        assert "job" not in kinds(query, carol)


def test_a_head_finds_the_jobs_of_the_group(alice, bob):
    make_job(alice, "fine tune")
    assert "job" not in kinds("fine", bob)
    bob.memberships.update(is_head=True)
    assert "job" in kinds("fine", bob)


def test_the_operator_finds_every_job(alice, omar):
    make_job(alice, "fine tune")
    assert "job" in kinds("fine", omar)


def test_nothing_is_asked_and_nothing_is_found(alice, django_assert_num_queries):
    make_node("node-a")
    with django_assert_num_queries(0):
        assert find("   ", alice) == []


def test_a_kind_gives_few_hits_however_many_there_are(alice):
    make_gpus(PER_KIND + 5, make_node("node-a"))
    hits = [hit for hit in find("node-a", alice) if hit.kind == "gpu"]
    assert len(hits) == PER_KIND


@pytest.mark.once
@pytest.mark.parametrize("query", ["%", "_", "'", "\\", "[(", "x" * 5000, "９" * 30])
def test_odd_queries_find_nothing_and_break_nothing(client: Client, alice, query: str):
    make_node("node-a")
    client.force_login(alice)
    assert client.get("/search", {"q": query}).status_code == 200
    assert len(query[:LONGEST_QUERY]) <= LONGEST_QUERY


def test_the_search_box_gets_json(client: Client, alice):
    make_gpu(make_node("node-a"))
    client.force_login(alice)
    answer = client.get("/search?q=node-a", headers={"accept": "application/json"})
    assert answer.json()["hits"][0] == {
        "kind": "node",
        "title": "node-a",
        "detail": "node",
        "url": "/?q=node-a",
    }


def test_what_was_typed_stays_typed_and_is_only_text(client: Client, alice):
    client.force_login(alice)
    text = client.get("/search", {"q": "<script>x"}).content.decode()
    assert "<script>x" not in text
    assert "Nothing found for “&lt;script&gt;x”" in text


@pytest.mark.once
def test_a_search_costs_the_same_queries_for_many_hits(
    alice, django_assert_max_num_queries
):
    make_gpus(30, make_node("node-a"))
    SitePolicy.current()
    # Nodes, Gpus, policy, people, their groups, jobs.
    with django_assert_max_num_queries(7):
        find("a", alice)
