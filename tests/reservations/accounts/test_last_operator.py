"""One operator stays, also if two end the rights of each other at once."""

import pytest
from django.utils import timezone

from reservations.accounts import people
from reservations.models import User
from reservations.rules.errors import NotAllowed

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("field", ["is_active", "is_superuser"])
def test_who_was_an_operator_when_the_request_began_ends_not_the_last_one(
    omar, bob, field
):
    def end(person: User, actor: User) -> None:
        people.change(
            user_id=person.pk, fields={field: False}, actor=actor, now=timezone.now()
        )

    User.objects.filter(pk=bob.pk).update(is_staff=True, is_superuser=True)
    end(omar, bob)
    with pytest.raises(NotAllowed, match="the rights of the last admin"):
        end(bob, omar)
    bob.refresh_from_db()
    assert bob.is_active and bob.is_superuser
    # Names and the like of the last one can be changed.
    now = timezone.now()
    people.change(user_id=bob.pk, fields={"display_name": "Bo"}, actor=omar, now=now)
    User.objects.filter(pk=omar.pk).update(is_active=True, is_superuser=True)
    end(bob, omar)
