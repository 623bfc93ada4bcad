"""Stored Plans: access, links, files, comparison, booking from the first start."""

import io
import json
import zipfile
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from placement.models import Job, StoredPlan
from placement.plans import service as planning
from placement.plans.saved_plans import set_link
from reservations.models import Reservation
from reservations.rules.lifecycle import State
from tests.factories import make_reservation
from tests.placement.lab import plan_on, signed_in
from tests.placement.plans.views.test_plan_page import choice_of, typed

pytestmark = pytest.mark.django_db


@pytest.fixture
def kept(alice, gpus) -> StoredPlan:
    return plan_on(alice, "ddp")


def page_of(user, plan: StoredPlan, query: str = ""):
    return signed_in(user).get(f"/plan/{plan.pk}/{query}")


@pytest.mark.once
def test_a_plan_is_saved_from_its_card_and_opens_its_question_again(alice, gpus):
    student = signed_in(alice)
    html = student.get("/plan/").content.decode()
    answer = student.post("/plan/choose/", typed(keep=choice_of(html), batch="8"))
    row = StoredPlan.objects.get(owner=alice)
    assert answer["Location"] == f"/plan/{row.pk}/"
    page = student.get(answer["Location"]).content.decode()
    assert "gpt2: One GPU" in page
    assert "/plan/?source=known&amp;known=gpt2" in page
    assert student.get(f"/plan/?{row.address}").status_code == 200


@pytest.mark.once
def test_the_owner_an_operator_and_a_head_see_it_others_do_not(
    kept, alice, bob, carol, omar
):
    assert page_of(alice, kept).status_code == 200
    assert page_of(omar, kept).status_code == 200
    for other in (bob, carol):
        for path in ("", "files.zip", "files/plan.json"):
            assert signed_in(other).get(f"/plan/{kept.pk}/{path}").status_code == 404
    bob.memberships.update(is_head=True)
    assert page_of(bob, kept).status_code == 200
    carol.memberships.update(is_head=True)
    assert page_of(carol, kept).status_code == 404


def test_the_oldest_plans_of_one_person_go_and_what_a_job_names_stays(
    kept, alice, bob, gpus, monkeypatch
):
    """A script that keeps plans does not fill the database."""
    monkeypatch.setattr(planning, "KEPT_PLANS", 3)
    other = plan_on(bob, "ddp")
    run = plan_on(alice, "ddp")
    row = make_reservation(alice, gpus[:1], state=State.ACTIVE)
    Job.objects.create(
        reservation=row,
        owner=alice,
        node=gpus[0].node,
        name="try",
        kind="recipe",
        recipe="burn-in",
        plan=run,
    )
    html = signed_in(alice).get("/plan/").content.decode()
    for _ in range(4):
        fields = typed(keep=choice_of(html), batch="8")
        assert signed_in(alice).post("/plan/choose/", fields).status_code == 302
    left = set(StoredPlan.objects.filter(owner=alice).values_list("pk", flat=True))
    assert run.pk in left and kept.pk not in left
    assert len(left) == 4
    assert StoredPlan.objects.filter(pk=other.pk).exists()


def test_nobody_looks_without_a_login_even_with_the_link(kept, client):
    key = set_link(plan=kept, shared=True)
    answer = client.get(f"/plan/{kept.pk}/?key={key}")
    assert answer.status_code == 302 and "/login/" in answer["Location"]


@pytest.mark.once
def test_a_link_opens_it_to_whoever_is_signed_in_until_it_is_taken_back(
    kept, alice, carol
):
    owner = signed_in(alice)
    share = f"/plan/{kept.pk}/share/"
    assert signed_in(carol).post(share, {"shared": "yes"}).status_code == 404
    owner.post(share, {"shared": "yes"})
    kept.refresh_from_db()
    key = kept.link_key
    assert len(key) >= 32 and key in page_of(alice, kept).content.decode()
    page = page_of(carol, kept, f"?key={key}")
    assert page.status_code == 200
    assert "Create a link" not in page.content.decode()
    for query in ("", "?key=", "?key=nonsense", "?key=%ff%00", f"?key={key[:-1]}"):
        assert page_of(carol, kept, query).status_code == 404, query
    owner.post(share, {"shared": "no"})
    assert page_of(carol, kept, f"?key={key}").status_code == 404
    owner.post(share, {"shared": "yes"})
    kept.refresh_from_db()
    assert kept.link_key != key


@pytest.mark.once
def test_the_files_come_one_by_one_and_as_one_archive(kept, alice):
    student = signed_in(alice)
    html = student.get(f"/plan/{kept.pk}/").content.decode()
    one = student.get(f"/plan/{kept.pk}/files/launch.sh")
    assert "torchrun" in one.content.decode()
    assert one["Content-Disposition"] == 'attachment; filename="launch.sh"'
    packed = student.get(f"/plan/{kept.pk}/files.zip")
    with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert json.loads(archive.read("plan.json"))["strategy"] == "ddp"
        assert archive.read("launch.sh") == one.content
    assert {"plan.json", "launch.sh", "deepspeed.json"} <= set(names)
    assert all(reverse("plan-file", args=[kept.pk, name]) in html for name in names)
    assert student.get(f"/plan/{kept.pk}/files/..%2fsecret").status_code == 404
    assert "device_map.json</strong>: not available." in html


@pytest.mark.once
def test_the_gpus_are_booked_at_once_and_lead_to_the_job(kept, alice):
    answer = signed_in(alice).post(f"/plan/{kept.pk}/book/", {"at": "", "hours": "2"})
    held = Reservation.objects.get(user=alice)
    assert held.state == State.ACTIVE
    assert {a.gpu.uuid for a in held.allocations.all()} == {
        shard["gpu_uuid"] for shard in kept.plan["shards"]
    }
    assert answer["Location"] == f"/jobs/new/?reservation={held.pk}&plan={kept.pk}"


@pytest.mark.once
def test_the_earliest_start_is_after_those_who_have_the_gpus(kept, alice, bob, gpus):
    now = timezone.now()
    end = now + timedelta(hours=5)
    make_reservation(bob, gpus, now, end, state=State.ACTIVE)
    page = page_of(alice, kept)
    own = page.context["starts"].own
    assert own >= end
    first = page.context["form"].initial["at"]
    assert f'value="{first}"' in page.content.decode()
    refused = signed_in(alice).post(f"/plan/{kept.pk}/book/", {"at": "", "hours": "2"})
    assert refused.status_code == 409
    assert "is taken by Bob" in " ".join(refused.context["form"].non_field_errors())
    assert 'value="2' in refused.content.decode()
    answer = signed_in(alice).post(
        f"/plan/{kept.pk}/book/", {"at": first, "hours": "2"}
    )
    held = Reservation.objects.get(user=alice)
    assert answer["Location"] == f"/reservations/{held.pk}/"
    assert held.start == own


def test_other_gpus_that_suit_sooner_are_named(kept, alice, bob, gpus):
    now = timezone.now()
    uuids = {shard["gpu_uuid"] for shard in kept.plan["shards"]}
    taken = [gpu for gpu in gpus if gpu.uuid in uuids][:1]
    make_reservation(bob, taken, now, now + timedelta(hours=5), state=State.ACTIVE)
    starts = page_of(alice, kept).context["starts"]
    assert starts.other is not None and starts.other < starts.own
    assert len(starts.other_gpus) == len(uuids)


@pytest.mark.once
@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"hours": "0"}, "hours"),
        ({"hours": "x"}, "hours"),
        ({"hours": "2", "at": "soon"}, "at"),
        ({"hours": "1e999"}, "hours"),
    ],
)
def test_a_wrong_booking_is_named_at_its_field(kept, alice, asked, field):
    answer = signed_in(alice).post(f"/plan/{kept.pk}/book/", asked)
    assert answer.status_code == 422
    assert field in answer.context["form"].errors
    assert not Reservation.objects.exists()


def test_whoever_books_anothers_plan_gets_a_copy_of_it(kept, carol):
    key = set_link(plan=kept, shared=True)
    answer = signed_in(carol).post(f"/plan/{kept.pk}/book/", {"hours": "1", "key": key})
    copy = StoredPlan.objects.get(owner=carol)
    kept.refresh_from_db()
    assert copy.plan == kept.plan and copy.link_key == ""
    assert f"plan={copy.pk}" in answer["Location"]


@pytest.mark.once
def test_two_kept_plans_stand_side_by_side_and_anothers_does_not(kept, alice, carol):
    other = plan_on(alice, "single")
    hers = plan_on(carol, "single")
    student = signed_in(alice)
    page = student.get(f"/plan/compare/?a={kept.pk}&b={other.pk}")
    assert page.context["compare"] is not None
    assert "times as fast" in page.content.decode()
    for b in (hers.pk, "", "9" * 40, "x"):
        page = student.get(f"/plan/compare/?a={kept.pk}&b={b}")
        assert page.status_code == 200
        assert "Choose two plans" in page.content.decode()
    assert "gpt2: One GPU" in student.get("/plan/kept/").content.decode()
    assert (
        "No plan saved yet"
        in signed_in(type(alice).objects.create_user("dora", is_active=True))
        .get("/plan/kept/")
        .content.decode()
    )


@pytest.mark.once
def test_the_list_asks_no_more_for_more_plans(kept, alice, django_assert_num_queries):
    student = signed_in(alice)
    student.get("/plan/kept/")
    for _ in range(3):
        StoredPlan.objects.create(
            owner=alice, title="x", spec={}, workload={}, plan=kept.plan
        )
    with django_assert_num_queries(8):
        student.get("/plan/kept/")


@pytest.mark.once
def test_the_api_keeps_lists_and_gives_files(alice, bob, gpus):
    student = signed_in(alice)
    asked = {"model": "gpt2", "wish": "fastest", "keep": 0}
    answer = student.post("/api/v1/plans", asked, content_type="application/json")
    made = answer.json()
    assert made["wish"] == "fastest"
    number = made["kept"]["id"]
    rows = student.get("/api/v1/plans").json()
    assert rows["count"] == 1 and rows["plans"][0]["id"] == number
    one = student.get(f"/api/v1/plans/{number}").json()
    assert one["plan"] == made["plans"][0]
    files = student.get(f"/api/v1/plans/{number}/files").json()
    assert {file["name"] for file in files["files"]} >= {"plan.json", "launch.sh"}
    packed = student.get(f"/api/v1/plans/{number}/files?form=zip")
    assert packed["Content-Type"] == "application/zip"
    for path in ("", "/files", "/files?form=zip", "/files?key=x"):
        assert signed_in(bob).get(f"/api/v1/plans/{number}{path}").status_code == 404
    key = set_link(plan=StoredPlan.objects.get(), shared=True)
    path = f"/api/v1/plans/{number}/files?key={key}"
    assert signed_in(bob).get(path).status_code == 200
    wrong = {"model": "gpt2", "keep": 999}
    answer = student.post("/api/v1/plans", wrong, content_type="application/json")
    assert answer.status_code == 422 and "keep" in answer.json()["fields"]
