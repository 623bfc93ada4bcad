"""The Unix logins of people, by which their processes are found."""

from reservations.models import User


def unix_login(user: User) -> str:
    """Return the Unix login of a person: the one that the operator set, or the user
    name. "": it is not known, because the person may have chosen the user name.
    """
    if user.unix_user or user.name_from_provider:
        return user.unix_user
    return user.username
