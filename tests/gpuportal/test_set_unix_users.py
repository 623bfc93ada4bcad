"""`manage.py set_unix_users`: a whole lab's Unix users in one table."""

import io

import pytest
from django.core.management import CommandError, call_command

from reservations.models import AuditEntry, User

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def table(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "people.csv"
        path.write_text(text)
        return str(path)

    return write


def test_a_table_sets_everybody_at_once_and_is_audited(table, alice, bob, omar):
    text = "user;unix_user\nalice;alice01\nbob;bob_m\n"
    out = io.StringIO()
    call_command("set_unix_users", table(text), "--as", "omar", stdout=out)
    assert out.getvalue() == "2 of 2 people changed.\n"
    for user, unix_user in ((alice, "alice01"), (bob, "bob_m")):
        user.refresh_from_db()
        assert user.unix_user == unix_user
    acts = AuditEntry.objects.filter(verb="people.changed", actor=omar)
    assert acts.count() == 2
    call_command("set_unix_users", table(text), "--as", "omar", stdout=out)
    assert out.getvalue().endswith("0 of 2 people changed.\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "user,unix_user\nalice,alice01\nnobody,x\n",
            "row 3: there is no login 'nobody'",
        ),
        ("user,unix_user\nalice,a1\nbob,Bob M\n", "row 3: Not a Unix login."),
        ("login,unix_user\nalice,a1\n", "The file cannot be read"),
    ],
)
def test_a_table_with_a_mistake_changes_nothing(table, alice, bob, omar, text, said):
    with pytest.raises(CommandError, match=said) as found:
        call_command("set_unix_users", table(text), "--as", "omar")
    assert found.value.returncode == 2
    assert not User.objects.exclude(unix_user="").exists()


def test_only_an_operator_sets_them_and_a_file_must_be_there(table, alice, omar):
    with pytest.raises(CommandError, match="alice is not an operator"):
        call_command("set_unix_users", table("user,unix_user\n"), "--as", "alice")
    with pytest.raises(CommandError, match="No such file"):
        call_command("set_unix_users", "/nowhere.csv", "--as", "omar")
