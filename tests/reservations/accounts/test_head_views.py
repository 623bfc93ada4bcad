"""A head changes the shares inside the own group, and nothing else."""

from datetime import timedelta

import pytest
from django.utils import timezone

from reservations.accounts import head_shares
from reservations.models import Account, Membership, TreeChange
from reservations.rules.errors import NotAllowed, NotFound
from reservations.rules.lifecycle import State
from telemetry.models import UsageSummary
from tests.factories import make_membership, make_reservation
from tests.reservations.conftest import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture
def head(lab, alice, bob, carol):
    Membership.objects.filter(user=alice).update(is_head=True)
    return alice


@pytest.mark.once
def test_a_head_previews_and_saves_shares_of_own_members(client, head, bob) -> None:
    client.force_login(head)
    own = bob.memberships.get()
    page = client.get("/group/")
    assert f'name="shares-{own.pk}" value="1"' in page.content.decode()
    form = {f"was-{own.pk}": "1:1", f"shares-{own.pk}": "x", "act": "save"}
    bad = client.post("/group/", form)
    assert bad.status_code == 422
    assert b"enter a whole number" in bad.content
    form[f"shares-{own.pk}"] = "7"
    seen = client.post("/group/", form | {"act": "preview"})
    assert b"A preview:" in seen.content
    own.refresh_from_db()
    assert own.shares == 1
    assert client.post("/group/", form).status_code == 302
    own.refresh_from_db()
    assert (own.shares, own.version) == (7, 2)
    change = TreeChange.objects.get()
    assert change.actor == head
    # Somebody saved meanwhile: what was typed is not forced over it.
    form[f"shares-{own.pk}"] = "9"
    crooked = form | {f"was-{own.pk}": "7:" + "9" * 5000, "shares-" + "9" * 30: "1"}
    assert client.post("/group/", crooked).status_code == 409
    stale = client.post("/group/", form)
    assert stale.status_code == 409
    assert b"changed in the meantime" in stale.content


@pytest.mark.once
def test_a_hostile_head_reaches_no_other_group_no_quota_and_no_rights(
    client, head, bob, carol
) -> None:
    client.force_login(head)
    nlp, vision = (Account.objects.get(name=n) for n in ("nlp", "vision"))
    carols, bobs = carol.memberships.get(), bob.memberships.get()
    assert client.get(f"/group/?account={nlp.pk}").status_code == 403
    assert client.get("/group/?account=999999").status_code == 403
    stolen = {f"was-{carols.pk}": "1:1", f"shares-{carols.pk}": "5", "act": "save"}
    assert client.post(f"/group/?account={nlp.pk}", stolen).status_code == 403
    assert client.post("/group/", stolen).status_code == 409
    more = {
        f"was-{bobs.pk}": "1:1",
        f"shares-{bobs.pk}": "5",
        "act": "save",
        f"quota-{bobs.pk}": "99",
        f"member-{bobs.pk}-quota": "99",
        "is_head": "on",
        f"account-{vision.pk}-quota": "9999",
        f"account-{vision.pk}-shares": "9999",
    }
    assert client.post("/group/", more).status_code == 302
    for row in (carols, bobs, vision):
        row.refresh_from_db()
    assert (carols.shares, bobs.shares, vision.shares) == (1, 5, 1)
    assert bobs.quota_gpu_seconds is vision.quota_gpu_seconds is None
    assert not bobs.is_head
    for name in ("collect", "add", "draft", "draft/drop", "changes/1/undo", "import"):
        assert client.post(f"/manage/accounts/{name}/").status_code == 403
    assert client.get("/manage/accounts.csv").status_code == 403
    assert client.post(f"/manage/courses/{vision.pk}/invite/").status_code == 403
    with pytest.raises(NotAllowed):
        head_shares.set_shares(user=head, account_id=nlp.pk, shares={}, now=NOW)
    with pytest.raises(NotFound):
        head_shares.set_shares(
            user=head, account_id=vision.pk, shares={carols.pk: (5, 1)}, now=NOW
        )
    huge = {f"was-{bobs.pk}": "5:2", f"shares-{bobs.pk}": "9" * 7, "act": "save"}
    assert client.post("/group/", huge).status_code == 409


@pytest.mark.once
def test_students_past_heads_and_strangers_have_no_group(client, head, bob) -> None:
    client.force_login(bob)
    own = bob.memberships.get()
    form = {f"was-{own.pk}": "1:1", f"shares-{own.pk}": "5", "act": "save"}
    assert client.get("/group/").status_code == 403
    assert client.post("/group/", form).status_code == 403
    Membership.objects.filter(user=head).update(active=False)
    client.force_login(head)
    assert client.post("/group/", form).status_code == 403


def test_a_head_from_above_steers_groups_below_one_at_a_time(
    client, lab, alice, bob
) -> None:
    make_membership(alice, lab.root, is_head=True)
    client.force_login(alice)
    vision = Account.objects.get(name="vision")
    own = bob.memberships.get()
    form = {f"was-{own.pk}": "1:1", f"shares-{own.pk}": "5", "act": "save"}
    # Bob is not a member of the institute itself.
    assert client.post(f"/group/?account={lab.root.pk}", form).status_code == 409
    assert client.post(f"/group/?account={vision.pk}", form).status_code == 302


def test_low_use_is_what_was_held_seen_and_hardly_used(
    client, lab, head, bob, omar, django_assert_max_num_queries
) -> None:
    now = timezone.now()
    for number, (util, seen) in enumerate(((5, 100), (80, 100), (0, 0))):
        start = now - timedelta(hours=10 * number + 8)
        row = make_reservation(
            bob, lab.gpus[:1], start, start + timedelta(hours=4), state=State.ENDED
        )
        UsageSummary.objects.create(
            kind="reservation",
            reservation_id=row.pk,
            from_at=row.start,
            to_at=row.end,
            n=seen,
            util_n=seen,
            util_sum_pct=util * seen,
            gpu_seconds=4 * 3600,
        )
    client.force_login(head)
    with django_assert_max_num_queries(32):
        page = client.get("/group/")
    low = page.context["low"].object_list
    assert [one.use.util_pct for one in low] == [5]
    held = {row.use.held_gpu_seconds for row in page.context["rows"]}
    assert held == {0, 12 * 3600}
    assert b"</svg>low use<" not in page.content
    higher = client.get("/group/?below=50")
    assert b"</svg>low use<" in higher.content
    assert len(client.get("/group/?below=90").context["low"].object_list) == 2
    client.force_login(omar)
    seen = client.get(f"/group/?account={lab.root.pk}")
    assert seen.status_code == 200
    assert b"Save shares" not in seen.content
