"""One Unix login is one person's: user names and Unix users that are refused."""

import pytest
from django.urls import reverse

from gpuportal.alerts.calendar_judge import load_logins
from reservations.accounts import people
from reservations.accounts.people import LoginTaken
from reservations.accounts.tree import service as tree
from reservations.accounts.tree.tree_edits import Edit
from reservations.models import User
from reservations.store.unix_logins import (
    login_fault,
    new_username_faults,
    shared_unix_logins,
)
from tests.factories import make_user
from tests.reservations.conftest import NOW

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


def test_nobody_takes_over_the_processes_of_a_login(client, alice, bob, omar) -> None:
    client.force_login(omar)
    new, own = reverse("manage-person-new"), reverse("manage-person", args=[alice.pk])
    form = {"display_name": "Alice", "email": "", "is_active": "on", "act": "save"}
    for page, typed in ((new, {"username": "eve"}), (own, {})):
        answer = client.post(page, form | typed | {"unix_user": "bob"})
        assert answer.status_code == 422
        assert "user name of Bob" in answer.content.decode()
        answer = client.post(page, form | typed | {"unix_user": "root"})
        assert "“root” is a system account" in answer.content.decode()
    assert load_logins()["bob"] == bob.pk
    assert not User.objects.filter(username="eve").exists()
    # Bob's own login may be written down. Then no new login may have the name.
    User.objects.filter(pk=bob.pk).update(username="robert", unix_user="bob")
    taken = client.post(new, form | {"username": "Bob"})
    assert "Unix user of Bob" in taken.content.decode()
    # An admin who changes something else keeps a pair that exists.
    User.objects.filter(pk=alice.pk).update(unix_user="bob")
    kept = client.post(own, form | {"unix_user": "bob", "display_name": "Alice M"})
    assert kept.status_code == 302
    assert shared_unix_logins() == {"bob": ("alice", "robert")}


@pytest.mark.parametrize("name", ["ａlice", "omаr", "ｏｍａｒ", "OMAR", "bob\n"])
def test_new_user_names_look_like_no_other(client, alice, bob, omar, name) -> None:
    client.force_login(omar)
    before = User.objects.count()
    for page, field in (
        (reverse("manage-person-new"), "username"),
        (reverse("admin:reservations_user_add"), "username"),
    ):
        answer = client.post(page, {field: name})
        assert answer.status_code in (200, 422)
        form = answer.context.get("form") or answer.context["adminform"].form
        assert "username" in form.errors
    edits = [Edit("user", None, None, {"username": name})]
    assert tree.preview_edits(edits, now=NOW).problems
    assert User.objects.count() == before


def test_full_width_letters_are_read_as_the_sign_in_page_reads_them(
    client, omar
) -> None:
    client.force_login(omar)
    client.post(reverse("manage-person-new"), {"username": "ｚｏｅ"})
    assert User.objects.filter(username="zoe").exists()


def test_services_refuse_what_forms_refuse(alice, bob, omar) -> None:
    same = {"actor": omar, "now": NOW}
    with pytest.raises(LoginTaken, match="user name of Bob"):
        people.change(user_id=alice.pk, fields={"unix_user": "bob"}, **same)
    with pytest.raises(LoginTaken, match="Another person"):
        people.make(username="BOB", fields={}, **same)
    people.set_unix_users({alice.pk: "a1", bob.pk: "b1"}, **same)
    # People exchange their Unix users in one table.
    people.set_unix_users({alice.pk: "b1", bob.pk: "a1"}, **same)
    with pytest.raises(LoginTaken, match=r"alice: .*bob: "):
        people.set_unix_users({alice.pk: "x1", bob.pk: "x1"}, **same)
    # Without a Unix user, the user name is the Unix login again.
    people.set_unix_users({alice.pk: "bob"}, **same)
    with pytest.raises(LoginTaken, match="Unix user of Alice"):
        people.set_unix_users({bob.pk: ""}, **same)
    people.set_unix_users({bob.pk: "", alice.pk: ""}, **same)


def test_a_user_name_chosen_at_a_provider_reserves_no_unix_user(alice, bob) -> None:
    bob.identities.create(issuer="x", subject="1", name_from_provider=True)
    alice.unix_user = "bob"
    assert login_fault(alice, ("unix_user",)) is None
    assert login_fault(alice, ()) is None
    bob.identities.all().delete()
    assert login_fault(alice, ("unix_user",)) is not None
    User.objects.filter(pk=bob.pk).update(is_active=False)
    assert login_fault(alice, ("unix_user",)) is None
    alice.save()
    # Bob comes back to find his login in use.
    bob.is_active = True
    assert login_fault(bob, ("is_active",)) is not None


def test_new_logins_of_a_file_are_compared_in_two_queries(
    alice, django_assert_num_queries
) -> None:
    make_user("carl", unix_user="cc")
    with django_assert_num_queries(2):
        found = new_username_faults(["ALICE", "cc", "dora"])
    assert found == {
        "ALICE": "“alice” is the user name of Alice",
        "cc": "“cc” is the Unix user of Carl",
    }
