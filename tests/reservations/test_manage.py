"""The operator's and the group head's pages: who reaches them, what they show."""

import pytest
from django.urls import reverse

from reservations.models import Membership

PAGES = ("manage-accounts",)


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


def test_a_head_has_an_entry_of_their_own_and_a_student_none(
    client, lab, alice
) -> None:
    client.force_login(alice)
    assert client.get(reverse("group")).status_code == 403
    assert b'href="/group/"' not in client.get(reverse("standing")).content
    Membership.objects.filter(user=alice).update(is_head=True)
    assert b'href="/group/"' in client.get(reverse("standing")).content
