"""Sign-in with a provider that we did not write, in another process."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from django.test import Client

from gpuportal.supervisor.kernel import die_with_parent
from reservations.accounts.identities.provider_settings import Provider
from reservations.models import AuditEntry, ClaimMapping, Identity, Membership, User
from reservations.store.unix_logins import unix_uid
from tests.factories import make_account
from tests.gpuportal.oidc.allauth_site import CLIENT, PASSWORD, SECRET
from tests.gpuportal.oidc.hostile_site import use

pytestmark = pytest.mark.django_db


@dataclass
class RealProvider:
    """The running provider and its folder."""

    issuer: str
    folder: Path

    def set_groups(self, **groups: object) -> None:
        (self.folder / "groups.json").write_text(json.dumps(groups))

    def settings(self) -> Provider:
        return Provider("uni", "Uni Example", self.issuer, CLIENT, SECRET)


@pytest.fixture(scope="module")
def real_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealProvider]:
    folder = tmp_path_factory.mktemp("provider")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.gpuportal.oidc.allauth_site", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent(signal.SIGKILL),
    )
    assert process.stdout is not None
    port = process.stdout.readline().strip()
    assert port, "the provider did not start"
    yield RealProvider(f"http://127.0.0.1:{port}", folder)
    process.kill()
    process.wait(60)
    process.stdout.close()


@pytest.fixture
def real(real_process: RealProvider, settings) -> RealProvider:
    use(settings, real_process.settings())
    real_process.set_groups()
    return real_process


class Person:
    """A browser that signs in at the provider and then at the portal."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.portal = Client()
        self.provider = httpx.Client(follow_redirects=True, timeout=60)

    def to_provider(self, back: str = "") -> httpx.Response:
        """Follow the button. Return the provider's page that asks for consent."""
        answer = self.portal.get("/login/uni/", {"next": back} if back else {})
        assert answer.status_code == 302, answer.content.decode()
        page = self.provider.get(answer["Location"])
        if "/accounts/login/" in page.url.path:
            page = self._post(page, {"login": self.name, "password": PASSWORD})
        assert page.url.path == "/identity/o/authorize", page.text
        return page

    def consent(self, page: httpx.Response, action: str = "grant") -> str:
        """Answer the question for consent. Return the way back to the portal."""
        fields = re.findall(r'<input[^>]*name="(\w+)"[^>]*value="([^"]*)"', page.text)
        values: dict[str, list[str] | str] = {}
        for name, value in fields:
            values.setdefault(name, []).append(value)  # type: ignore[union-attr]
        answer = self._post(page, values | {"action": action}, follow=False)
        assert answer.status_code == 302, answer.text
        parts = urlsplit(answer.headers["Location"])
        return f"{parts.path}?{parts.query}"

    def _post(
        self, page: httpx.Response, values: dict, *, follow: bool = True
    ) -> httpx.Response:
        values["csrfmiddlewaretoken"] = self.provider.cookies["provider-csrf"]
        where = {"Referer": str(page.url), "Origin": str(page.url.join("/"))[:-1]}
        return self.provider.post(
            page.url, data=values, headers=where, follow_redirects=follow
        )

    def sign_in(self, back: str = ""):
        return self.portal.get(self.consent(self.to_provider(back)), follow=True)


def test_a_person_signs_in_and_comes_back_to_the_page(real):
    vision = make_account("vision")
    ClaimMapping.objects.create(
        issuer=real.issuer, value="gpu-users", account=vision, role="member"
    )
    real.set_groups(ada=["gpu-users", "sports"])
    ada = Person("ada")
    answer = ada.sign_in(back="/help/")
    assert answer.redirect_chain[-1][0] == "/help/"
    user = answer.wsgi_request.user
    assert (user.username, user.display_name) == ("ada", "Ada")
    assert user.email == "ada@uni.example"
    assert not user.has_usable_password() and not user.is_superuser
    identity = Identity.objects.get(user=user)
    assert identity.issuer == real.issuer
    assert identity.groups == ["gpu-users", "sports"]
    assert Membership.objects.get(user=user).account == vision
    made = AuditEntry.objects.filter(subject=f"user:{user.pk}")
    assert [row.verb for row in made] == ["identity.person-made"]


def test_a_second_sign_in_is_the_same_person(real, settings):
    nlp = make_account("nlp")
    ClaimMapping.objects.create(
        issuer=real.issuer, value="staff", account=nlp, role="head"
    )
    # A provider may write one group as a string.
    real.set_groups(bea="staff")
    first = Person("bea").sign_in().wsgi_request.user
    assert Membership.objects.get(user=first).is_head
    # It says the Unix user as well.
    more = {"groups_claim": "groups.names", "unix_uid_claim": "groups.uidNumber"}
    names = {"unix_user_claim": "preferred_username"}
    use(settings, replace(real.settings(), **more, **names))
    real.set_groups(bea={"names": [], "uidNumber": 1815})
    second = Person("bea").sign_in().wsgi_request.user
    assert second == first and User.objects.filter(username="bea").count() == 1
    assert not Membership.objects.get(user=first).active
    assert (second.unix_user, unix_uid(second)) == ("bea", 1815)


@pytest.mark.once
def test_a_person_without_a_mapped_group_gets_no_account(real):
    answer = Person("cleo").sign_in()
    assert answer.status_code == 403
    assert "none of your groups there has access" in answer.content.decode()
    assert not User.objects.exists()


@pytest.mark.once
def test_denied_consent_is_a_page(real):
    person = Person("ada")
    answer = person.portal.get(person.consent(person.to_provider(), "deny"))
    assert answer.status_code == 403
    assert "You did not agree at Uni Example" in answer.content.decode()
    assert "_auth_user_id" not in person.portal.session


@pytest.mark.once
def test_a_code_works_once(real, settings):
    use(settings, Provider(**{**vars(real.settings()), "sign_up": "all"}))
    person = Person("cleo")
    page = person.to_provider()
    cookie = person.portal.cookies["oidc"].value
    back = person.consent(page)
    assert person.portal.get(back).status_code == 302
    assert person.portal.cookies["oidc"].value == ""
    # A thief who has the whole request, cookie included.
    thief = Client()
    thief.cookies["oidc"] = cookie
    answer = thief.get(back)
    assert answer.status_code == 400
    assert "no longer valid" in answer.content.decode()
    assert "_auth_user_id" not in thief.session
    # The person's own Back button leads to the start page.
    assert person.portal.get(back)["Location"] == "/login/"


@pytest.mark.once
def test_signing_out_offers_to_sign_out_there(real, settings):
    use(settings, Provider(**{**vars(real.settings()), "sign_up": "all"}))
    person = Person("cleo")
    person.sign_in()
    page = person.portal.post("/logout/", follow=True)
    assert "Your session at Uni Example goes on" in page.content.decode()
    left = person.portal.get("/login/uni/end/")
    assert left["Location"].startswith(f"{real.issuer}/identity/o/logout?client_id=")
