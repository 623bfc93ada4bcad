"""The pages of the operator and of group heads: access and content."""

import html
import re

import pytest
from django.urls import reverse
from django.utils import timezone

from reservations.accounts.tree import service as accounts
from reservations.accounts.tree.tree_edits import Edit
from reservations.models import Account, Membership, TreeChange, User
from tests.reservations.conftest import NOW, at

PAGES = ("manage-accounts", "manage-draft", "manage-changes")


@pytest.mark.parametrize("name", PAGES)
def test_only_the_operator_reaches_the_pages_under_manage(
    client, lab, alice, omar, name
) -> None:
    assert client.get(reverse(name)).status_code == 302
    Membership.objects.update(is_head=True)
    client.force_login(alice)
    assert client.get(reverse(name)).status_code == 403
    client.force_login(omar)
    answer = client.get(reverse(name))
    assert answer.status_code == 200
    assert b'href="/manage/" aria-current="page"' in answer.content


@pytest.mark.once
def test_a_head_has_an_entry_of_their_own_and_a_student_none(
    client, lab, alice
) -> None:
    client.force_login(alice)
    assert client.get(reverse("group")).status_code == 403
    assert b'href="/group/"' not in client.get(reverse("standing")).content
    Membership.objects.filter(user=alice).update(is_head=True)
    assert b'href="/group/"' in client.get(reverse("standing")).content


def shown(answer, key: str) -> str:
    """Return what the page keeps of a row as it was shown."""
    found = re.search(rf'name="{key}-was" value="([^"]*)"', answer.content.decode())
    assert found
    return html.unescape(found[1])


def test_edits_of_two_pages_are_collected_previewed_saved_and_undone(
    client, lab, alice, bob, omar
) -> None:
    lab.book(alice, lab.gpus[:1], at(12), 4)
    client.force_login(omar)
    vision = Account.objects.get(name="vision")
    own = alice.memberships.get()
    tree = reverse("manage-accounts")
    page = client.get(tree, {"account": vision.pk})
    account, member = f"account-{vision.pk}", f"member-{own.pk}"
    form = {
        f"{account}-was": shown(page, account),
        f"{account}-title": "Vision",
        f"{account}-parent": "institute",
        f"{account}-shares": "x",
        f"{account}-quota": "1,5",
        f"{account}-ends": "",
        f"{member}-was": shown(page, member),
        f"{member}-shares": "4",
        f"{member}-quota": "",
        f"{member}-head": "on",
        f"{member}-sponsor": "",
        f"{member}-expires": "",
    }
    url = f"{reverse('manage-collect')}?account={vision.pk}"
    bad = client.post(url, form)
    assert bad.status_code == 422
    assert b"enter a whole number" in bad.content
    assert b'value="x"' in bad.content
    form[f"{account}-shares"] = "3"
    assert client.post(url, form | {"next": "stay"}).status_code == 302
    again = client.get(tree, {"account": vision.pk}).content.decode()
    assert "Draft: <strong>2 changes</strong>" in again
    # Another page's edit is added to them.
    where = f"{reverse('manage-add')}?account={lab.root.pk}"
    new = {"act": "account", "add-name": "robots", "add-shares": "2"}
    assert client.post(where, new).status_code == 302
    change = preview_and_save(client)
    vision.refresh_from_db()
    own.refresh_from_db()
    assert (vision.shares, vision.quota_gpu_seconds) == (3, 5400)
    assert (own.is_head, own.shares) == (True, 4)
    assert Account.objects.get(name="robots").parent == lab.root
    undone = client.post(reverse("manage-undo", args=[change.pk]), follow=True)
    assert f"Change #{change.pk} is undone".encode() in undone.content
    vision.refresh_from_db()
    assert (vision.shares, vision.quota_gpu_seconds) == (1, None)
    one = client.get(reverse("manage-change", args=[change.pk]))
    assert b"undone by" in one.content


def preview_and_save(client) -> TreeChange:
    """Look at what is collected, and save it."""
    preview = client.get(reverse("manage-draft"))
    text = preview.content.decode()
    assert "Alice in Vision" in text
    assert "Robots" not in text and "robots" in text
    assert 'quota <span class="before">–</span>' in text
    mark = re.search(r'name="mark" value="(\w+)"', text)
    assert mark
    where, save = reverse("manage-draft"), {"save": 1, "mark": mark[1]}
    assert client.post(where, save).status_code == 422
    other = client.post(where, save | {"mark": "old", "reason": "term"})
    assert other.status_code == 409
    done = client.post(where, save | {"reason": "term"}, follow=True)
    assert done.status_code == 200
    assert b"Alice in Vision" in done.content
    return TreeChange.objects.get()


@pytest.mark.once
def test_what_somebody_else_saved_meanwhile_is_not_overwritten(
    client, lab, alice, omar
) -> None:
    client.force_login(omar)
    vision = Account.objects.get(name="vision")
    key = f"account-{vision.pk}"
    page = client.get(reverse("manage-accounts"), {"account": vision.pk})
    form = {f"{key}-was": shown(page, key), f"{key}-shares": "5"}
    form |= {f"{key}-title": "Vision", f"{key}-parent": "institute"}
    edit = Edit("account", vision.pk, 1, {"quota_gpu_seconds": 9})
    accounts.save(edits=[edit], actor=omar, reason="other", now=NOW)
    client.post(f"{reverse('manage-collect')}?account={vision.pk}", form)
    text = client.get(reverse("manage-draft")).content.decode()
    assert "vision was changed in the meantime" in text
    assert "Apply all" not in text


@pytest.mark.once
@pytest.mark.parametrize("name", ["manage-collect", "manage-add", "manage-drop"])
def test_a_head_changes_nothing_under_manage(client, lab, alice, name) -> None:
    Membership.objects.filter(user=alice).update(is_head=True)
    client.force_login(alice)
    assert client.post(reverse(name)).status_code == 403
    assert client.post(reverse("manage-undo", args=[1])).status_code == 403


def test_the_tree_of_a_large_site_costs_the_same_queries(
    client, lab, omar, django_assert_max_num_queries
) -> None:
    User.objects.bulk_create(User(username=f"s{n}") for n in range(3000))
    Account.objects.bulk_create(
        Account(name=f"group{n}", parent=lab.root) for n in range(200)
    )
    groups = list(Account.objects.filter(parent=lab.root))
    Membership.objects.bulk_create(
        Membership(user=user, account=groups[user.pk % 200])
        for user in User.objects.filter(username__startswith="s")
    )
    client.force_login(omar)
    with django_assert_max_num_queries(25):
        page = client.get(reverse("manage-accounts"), {"account": lab.root.pk})
    assert b"Groups 1 to 50 of 202" in page.content
    edit = Edit("account", groups[0].pk, 1, {"shares": 7})
    session = client.session
    session["tree_draft"] = [edit.to_json()]
    session.save()
    with django_assert_max_num_queries(28):
        preview = client.get(reverse("manage-draft"))
    assert b"Apply all" in preview.content
    with django_assert_max_num_queries(20):
        assert client.get(reverse("manage-changes")).status_code == 200


def test_what_is_changed_at_the_admin_desk_is_kept_and_undone_too(
    client, lab, omar
) -> None:
    client.force_login(omar)
    vision = Account.objects.get(name="vision")
    page = reverse("admin:reservations_account_change", args=[vision.pk])
    form = client.get(page).context["adminform"].form
    sent = {name: form[name].value() for name in form.fields}
    sent = {name: value for name, value in sent.items() if value is not None}
    sent |= {"shares": 9, "reason": "term", "ends_at_0": "", "ends_at_1": ""}
    assert client.post(page, sent).status_code == 302
    vision.refresh_from_db()
    assert (vision.shares, vision.version) == (9, 2)
    change = TreeChange.objects.get(kind="desk", reason="term")
    client.post(reverse("manage-undo", args=[change.pk]))
    vision.refresh_from_db()
    assert vision.shares == 1


def test_the_whole_tree_is_one_list(client, lab, omar) -> None:
    vision = Account.objects.get(name="vision")
    robots = Account.objects.create(name="robots", title="Robots", parent=vision)
    Account.objects.create(name="old", parent=vision, archived_at=timezone.now())
    client.force_login(omar)

    def rows(**query: object) -> list[tuple[str, str]]:
        page = client.get(reverse("manage-accounts"), query).content.decode()
        return re.findall(r'data-account="([^"]+)" data-depth="(\d+)"', page)

    whole = [("institute", "0"), ("nlp", "1"), ("vision", "1"), ("robots", "2")]
    assert rows() == whole
    assert rows(account=vision.pk) == [("robots", "0")]
    assert rows(q="ro") == [("robots", "0")]
    assert rows(archived="1") == [*whole[:3], ("old", "2"), ("robots", "2")]
    # A row of a deep Account is changed where the tree begins.
    page = client.get(reverse("manage-accounts"))
    key = f"account-{robots.pk}"
    form = {
        f"{key}-was": shown(page, key),
        f"{key}-title": "Robots",
        f"{key}-parent": "vision",
        f"{key}-shares": "7",
        f"{key}-quota": "",
        f"{key}-ends": "",
    }
    client.post(reverse("manage-collect"), form)
    (edit,) = client.session["tree_draft"]
    assert edit["fields"] == {"shares": 7}
