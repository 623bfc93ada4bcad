"""The logins of people by key, for tables that name them."""

from reservations.accounts.tree.tree_csv import Person
from reservations.models import User


def people() -> dict[int, Person]:
    """Return the logins of all persons, in one query."""
    rows = User.objects.filter(erased_at=None).order_by()
    return {
        pk: Person(username, name, mail)
        for pk, username, name, mail in rows.values_list(
            "pk", "username", "display_name", "email"
        )
    }


def unix_users() -> frozenset[str]:
    """Return the Unix users of all persons."""
    rows = User.objects.filter(erased_at=None).exclude(unix_user="").order_by()
    return frozenset(rows.values_list("unix_user", flat=True))
