"""The tree as CSV: an export is read back unchanged, and errors are named."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from reservations.accounts.tree.queries import read_tree
from reservations.models import Account, Membership, TreeChange, User
from tests.factories import make_membership, make_user
from tests.reservations.conftest import NOW

pytestmark = pytest.mark.django_db
URL = "/manage/accounts/import/"


def send(client, text: str | bytes, **more: str):
    data = text if isinstance(text, bytes) else text.encode()
    return client.post(URL, {"file": SimpleUploadedFile("a.csv", data)} | more)


def confirm(client, answer, text: str):
    mark = answer.context["review"].mark
    data = {"text": text, "save": "1", "mark": mark, "reason": "term"}
    return client.post(URL, data)


def test_what_is_exported_comes_back_equal_and_runs_in_no_spreadsheet(
    client, lab, alice, bob, omar
) -> None:
    client.force_login(omar)
    titles = {"vision": "=HYPERLINK(1)", "nlp": '\'=quoted; "x", y', "institute": "-2"}
    for name, title in titles.items():
        Account.objects.filter(name=name).update(
            title=title, quota_gpu_seconds=1234567, ends_at=NOW + timedelta(days=900)
        )
    Membership.objects.filter(user=bob).update(
        is_head=True, shares=4, quota_gpu_seconds=10**12 + 1
    )
    User.objects.filter(pk=alice.pk).update(display_name="@SUM(A1)", email="a@b.org")
    make_membership(
        make_user("gus"), "vision", sponsor=bob, expires_at=NOW + timedelta(days=800)
    )
    sent = client.get(reverse("manage-export"))
    text = sent.content.decode("utf-8-sig")
    assert sent.content.startswith(b"\xef\xbb\xbf")
    assert ",'=HYPERLINK(1)," in text and ",'@SUM(A1)," in text and ",'-2," in text
    again = send(client, sent.content)
    assert again.status_code == 200
    assert again.context["changes"] == []
    assert again.context["source"].same == 6
    before = read_tree()
    # The same file makes the same tree where it was changed meanwhile.
    Account.objects.update(
        title="other", shares=9, quota_gpu_seconds=None, ends_at=None
    )
    Membership.objects.update(is_head=False, shares=2, quota_gpu_seconds=None)
    looked = send(client, text)
    assert confirm(client, looked, text).status_code == 302
    after = read_tree()
    for table in ("account", "member"):
        old, new = before.rows(table), after.rows(table)
        assert {pk: replace(row, version=0) for pk, row in old.items()} == {
            pk: replace(row, version=0) for pk, row in new.items()
        }


@pytest.mark.once
def test_every_wrong_row_is_named_and_nothing_is_written(
    client, lab, alice, omar
) -> None:
    client.force_login(omar)
    text = "\ufeff" + "\r\n".join(
        [
            "Row;Account;Parent;Shares;Quota hours;User;Mail;Head;Ends",
            "account;robots;institute;2;;;;;",
            "account;vision;nowhere;;;;;;",
            "",
            "account;nlp;;two;;;;;2026-02-30",
            "member;vision;;1;-4;alice;;maybe;",
            "member;vision;;1;;ghost;;;",
            "member;vision;;1;;eve;no mail;;",
            "thing;x;;;;;;;",
        ]
    )
    answer = send(client, text)
    assert answer.status_code == 422
    page = answer.content.decode()
    for error in (
        "Row 5, shares: is not a whole number",
        "Row 5, ends: is not a day like",
        "Row 6, head: must be yes or no",
        "Row 6, quota_hours: is not between 0",
        "Row 7, user: there is no such login",
        "Row 8, mail: is not a valid mail address",
        "Row 9, row: must be account or member",
    ):
        assert error in page
    lines = text.split("\r\n")
    answer = send(client, "\r\n".join(lines[:3]))
    assert "Row 3, parent: there is no group “nowhere”" in answer.content.decode()
    assert not TreeChange.objects.exists()
    assert not Account.objects.filter(name="robots").exists()


@pytest.mark.once
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is empty"),
        ("row,account\nmember,ä".encode("latin-1"), "not UTF-8"),
        (b"row,account,colour\n", "there is no column “colour”"),
        (b"row,title\n", "the column “account” is missing"),
        (b"row,account,row\n", "a column appears twice"),
        (b"row,account\naccount,a,b,c\n", "row 2 has more cells"),
        (b'row,account\naccount,"a\n', "line"),
        (b"row,account\n\x00", "it is not a text file"),
        (b"x" * (2 * 2**20 + 1), "larger than 2 MiB"),
    ],
)
def test_a_file_that_is_no_such_table_is_refused(client, lab, omar, data, why) -> None:
    client.force_login(omar)
    answer = send(client, data)
    assert answer.status_code == 422
    assert why in answer.content.decode()


@pytest.mark.once
def test_children_may_come_before_their_parents_and_utf_16_is_read(
    client, lab, omar
) -> None:
    client.force_login(omar)
    text = (
        "row\taccount\tparent\tuser\tname\n"
        "member\tleaf\t\teve\tÉve\n"
        "account\tleaf\ttwig\t\t\n"
        "account\ttwig\tinstitute\t\t\n"
    )
    looked = send(client, text.encode("utf-16"))
    assert looked.status_code == 200
    assert confirm(client, looked, text).status_code == 302
    leaf = Account.objects.get(name="leaf")
    assert leaf.parent.name == "twig"
    eve = User.objects.get(username="eve")
    assert (eve.display_name, eve.memberships.get().account) == ("Éve", leaf)


def test_an_import_is_refused_where_the_tree_moved_since_the_dry_run(
    client, lab, omar
) -> None:
    client.force_login(omar)
    text = "row,account,shares\naccount,vision,5\n"
    looked = send(client, text)
    Account.objects.filter(name="vision").update(version=2)
    answer = confirm(client, looked, text)
    assert answer.status_code == 409
    assert Account.objects.get(name="vision").shares == 1


@pytest.mark.once
def test_a_file_is_kept_while_the_reason_is_missing_and_another_file_is_previewed_again(
    client, lab, omar
) -> None:
    client.force_login(omar)
    looked = send(client, "row,account,shares\naccount,vision,5\n")
    page = looked.content.decode()
    assert "account,vision,5" in page and "The portal keeps the file" in page
    data = {
        "text": looked.context["form"].cleaned_data["text"],
        "save": "1",
        "mark": looked.context["review"].mark,
    }
    without = client.post(URL, data)
    assert without.status_code == 422
    assert "Give a reason" in without.content.decode()
    assert "account,vision,5" in without.content.decode()
    # Only what was previewed is saved: the same rows with other values are not.
    file = SimpleUploadedFile("b.csv", b"row,account,shares\naccount,vision,7\n")
    other = client.post(URL, data | {"reason": "term", "file": file})
    assert other.status_code == 409
    assert "account,vision,7" in other.content.decode()
    assert Account.objects.get(name="vision").shares == 1
    assert confirm(client, other, "row,account,shares\naccount,vision,7\n").url
    assert Account.objects.get(name="vision").shares == 7
