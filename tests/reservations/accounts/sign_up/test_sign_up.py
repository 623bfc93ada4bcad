"""People make their account by a mailed link, through a real SMTP server."""

import itertools
import re
from datetime import timedelta

import pytest
from django.db import transaction
from django.test import Client
from django.utils import timezone
from kombu.exceptions import OperationalError

from gpuportal.http.login_limits import clear_logins
from reservations.accounts import erasure, group_members, tasks
from reservations.accounts.identities import service as identities
from reservations.accounts.identities.provider_settings import LoginSettings, Provider
from reservations.accounts.identities.rules import Claims, SignInRefused
from reservations.accounts.sign_up import service, sign_up_mail, views
from reservations.accounts.sign_up.rules import read_address
from reservations.accounts.tree.tree_edits import TreeStale
from reservations.models import AuditEntry, SignUp, SignUpDomain, User
from reservations.rules.errors import NotAllowed
from reservations.store.unix_logins import unix_login
from tests.factories import PASSWORD, make_account, make_user
from tests.reservations.notifications.outside import smtp

pytestmark = pytest.mark.django_db(transaction=True)
CHOSEN = {"name": "Ada Lovelace", "password": PASSWORD, "again": PASSWORD}
UNI = Provider("uni", "Uni", "https://sso.example", "c", "s", sign_up="all")
callers = itertools.count(1)


@pytest.fixture
def site(settings, monkeypatch):
    """A site with mail, whose domain joins the group vision."""
    monkeypatch.setattr(tasks.mail_sign_up, "delay", tasks.mail_sign_up.run)
    vision = make_account("vision", quota_gpu_seconds=None)
    SignUpDomain.objects.create(domain="uni.example", account=vision)
    with smtp(settings) as postman:
        yield postman


def ask(address: str, caller: str = "", **more: str):
    # Requests from one address are counted in the broker, across tests.
    client = Client(REMOTE_ADDR=caller or f"198.51.100.{next(callers)}")
    return client.post("/sign-up/", {"email": address}, **more)


def last_link(postman) -> str:
    text = postman.mails[-1][1].get_content()
    return re.search(r"https://gpu\.example\.org(/sign-up/link/\S+)", text)[1]


def page(answer) -> str:
    return answer.content.decode()


def test_a_link_makes_one_person_in_the_group_of_the_domain(site):
    assert "/sign-up/" in page(Client().get("/login/"))
    assert "uni.example" in page(Client().get("/sign-up/"))
    assert ask("Ada@Uni.Example").url == "/sign-up/sent/"
    assert site.mails[0][0] == ["ada@uni.example"]
    link, visitor, second = last_link(site), Client(), Client()
    # A mail server that opens links uses nothing up.
    Client().head(link)
    form = visitor.get(link)
    assert form.url == "/sign-up/choose/"
    second.get(link)
    shown = visitor.get(form.url)
    assert "no-store" in shown.headers["Cache-Control"]
    assert "<strong>ada</strong>" in page(shown)
    wrong = visitor.post(form.url, {"name": "", "password": "12345678", "again": "x"})
    assert wrong.status_code == 422
    for words in ("Fill this in.", "The two passwords differ."):
        assert words in page(wrong)
    weak = visitor.post(
        form.url, CHOSEN | dict.fromkeys(("password", "again"), "1234567")
    )
    assert (weak.status_code, User.objects.count()) == (422, 0)
    assert visitor.post(form.url, CHOSEN).url == "/"
    ada = User.objects.get()
    assert (ada.username, ada.email, str(ada)) == (
        "ada",
        "ada@uni.example",
        CHOSEN["name"],
    )
    assert visitor.get("/me/").status_code == 200
    (member,) = ada.memberships.all()
    assert (member.account.name, member.is_head, ada.is_staff) == (
        "vision",
        False,
        False,
    )
    # The group has its quota from before, so a sign-up makes no time.
    assert member.account.quota_gpu_seconds == 0
    # A mailbox is no Unix account.
    assert unix_login(ada) == ""
    row = AuditEntry.objects.get(verb="sign-up.made")
    assert (row.actor, row.detail) == (ada, {"domain": "uni.example"})
    # The link worked once, for whoever has it.
    assert second.post(form.url, CHOSEN).status_code == 404
    assert Client().get(link).status_code == 404
    assert User.objects.count() == 1
    erasure_check(ada)


def erasure_check(ada: User) -> None:
    with transaction.atomic():
        erasure.erase(user_id=ada.pk, typed="ada", actor=None, now=timezone.now())
    assert not SignUp.objects.exists()


@pytest.mark.once
@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", "Fill this in."),
        ("ada", "Enter a mail address"),
        ("ada@uni.example.", "Enter a mail address"),
        ("ada+2@uni.example", "Leave out the part from + to @."),
        ("ada@cs.uni.example", "Addresses at cs.uni.example cannot sign up."),
        ("ada@xuni.example", "cannot sign up"),
        ("ada@uni.example.evil.org", "cannot sign up"),
        ("ada@evil.org@uni.example", "Enter a mail address"),
        ("ada%evil.org@uni.example", "Enter a mail address"),
        ('"ada evil"@uni.example', "Enter a mail address"),
        ("ada@uni.example,x@evil.org", "Enter a mail address"),
        ("ada@uni.example\r\nBcc: x@evil.org", "Enter a mail address"),
        ("ada@uni.example\x00", "Remove the null characters."),
        ("ad\u0430@uni.example", "Enter a mail address"),
        (
            "ada@un\u0456.example",
            "Addresses at un\u0456.example cannot sign up.",
        ),
        ("ada@\uff55ni.example", "Enter a mail address"),
        ("ada@u\u00adni.example", "Enter a mail address"),
        ("ada@[192.0.2.1]", "Enter a mail address"),
        ("a" * 65 + "@uni.example", "Enter a mail address"),
        ("ada@" + "a" * 300, "254"),
    ],
)
def test_an_address_that_cannot_sign_up_is_refused_by_its_field(site, typed, words):
    answer = ask(typed)
    assert answer.status_code == 422
    assert words in re.search(r'id="email-error">([^<]*)', page(answer))[1]
    assert (site.mails, SignUp.objects.count()) == ([], 0)


@pytest.mark.once
def test_the_answer_does_not_say_whether_an_address_has_an_account(site):
    make_user("bob", email="Bob@UNI.example")
    make_user("eve", email="eve+gpu@uni.example")
    make_user("off", email="off@uni.example", is_active=False)
    make_user("zoe", email="zoe@k\u00f6ln.example")
    SignUpDomain.objects.create(domain="xn--kln-sna.example")
    assert ask("zoe@k\u00f6ln.example").status_code == 302
    assert "user name is zoe." in site.mails.pop()[1].get_content()
    answers = {
        (answer.status_code, answer.url, answer.content)
        for who in ("bob", "eve", "off", "new")
        for answer in [ask(f"{who}@uni.example")]
    }
    assert answers == {(302, "/sign-up/sent/", b"")}
    texts = {to[0]: mail.get_content() for to, mail in site.mails}
    assert "user name is bob." in texts["bob@uni.example"]
    links = {to for to, text in texts.items() if "/sign-up/link/" in text}
    assert links == {"new@uni.example"}
    assert len(texts) == 4


@pytest.mark.once
def test_an_account_that_was_made_meanwhile_is_never_joined(site):
    """A person of an identity provider may have the address. They stay two."""
    ask("ada@uni.example")
    visitor = Client()
    visitor.get(last_link(site))
    claims = Claims("7", "ada", "Ada", "ADA@uni.example", None)
    other = identities.sign_in(provider=UNI, claims=claims, now=timezone.now())
    refused = visitor.post("/sign-up/choose/", CHOSEN)
    assert refused.status_code == 409
    assert "this mail address has one" in page(refused)
    other.refresh_from_db()
    assert not other.has_usable_password()
    assert User.objects.count() == 1
    # The other way round the provider's person is refused, or is a second one.
    User.objects.update(username="first", email="")
    assert visitor.post("/sign-up/choose/", CHOSEN).url == "/"
    again = Claims("8", "ada", "Ada", "ada@uni.example", None)
    with pytest.raises(SignInRefused):
        identities.sign_in(provider=UNI, claims=again, now=timezone.now())
    third = Claims("8", "ada2", "Ada", "ada@uni.example", None)
    made = identities.sign_in(provider=UNI, claims=third, now=timezone.now())
    assert made != User.objects.get(username="ada")


@pytest.mark.once
def test_a_user_name_comes_from_the_address_and_is_never_that_of_another(
    site, settings
):
    now = timezone.now()
    make_user("Ada")
    make_user("x", unix_user="eve")
    name = service.next_user_name
    assert name(read_address("ada@uni.example")) == "ada@uni.example"
    assert name(read_address("eve@uni.example")) == "eve@uni.example"
    # Nobody signs in as a system account.
    assert name(read_address("root@uni.example")) == "root@uni.example"
    assert name(read_address("o'brien@uni.example")) == "obrien"
    make_user("obrien")
    make_user("obrien@uni.example")
    with pytest.raises(NotAllowed):
        name(read_address("o'brien@uni.example"))
    # A provider may know another person by the first part of an address.
    settings.LOGIN_SETTINGS = LoginSettings(("password", "oidc"), (UNI,), ())
    assert name(read_address("kim@uni.example")) == "kim@uni.example"
    settings.LOGIN_SETTINGS = LoginSettings(("password",), (), ())
    # An address that has made a person makes no other, whatever that one has now.
    _row, text = service.make_link(read_address("zoe@uni.example"), now=now)
    service.accept(text=text, name="Zoe", password=PASSWORD, now=now)
    User.objects.filter(username="zoe").update(username="z", email="z@other.example")
    assert service.make_link(read_address("zoe@uni.example"), now=now)[1] == ""


@pytest.mark.once
def test_mails_are_limited_for_an_address_and_for_the_site(
    site, time_machine, monkeypatch
):
    for _ in range(5):
        assert ask("ada@uni.example").url == "/sign-up/sent/"
    assert len(site.mails) == 3
    monkeypatch.setattr(service, "MOST_MAILS_IN_ALL", 4)
    ask("bob@uni.example")
    ask("eve@uni.example")
    assert [to for to, _mail in site.mails[3:]] == [["bob@uni.example"]]
    monkeypatch.setattr(views, "REQUESTS_PER_MINUTE", 2)
    answers = [ask("x", caller="203.0.113.9").status_code for _ in range(3)]
    assert answers == [422, 422, 429]
    link = last_link(site)
    # A mail that the server refused does not count, and its link does not work.
    time_machine.move_to(timezone.now() + timedelta(hours=1, minutes=1))
    assert Client().get(link).status_code == 404
    site.answers = ["550 no such mailbox"]
    ask("gone@uni.example")
    assert not SignUp.objects.filter(address="gone@uni.example").exists()
    time_machine.move_to(timezone.now() + timedelta(days=1))
    assert clear_logins(timezone.now())["sign-ups"] == 4


@pytest.mark.once
def test_a_site_that_allows_no_domain_has_no_sign_up(site, settings, monkeypatch):
    ask("ada@uni.example")
    link, visitor = last_link(site), Client()
    visitor.get(link)
    SignUpDomain.objects.update(domain="other.example")
    # A link of a domain that was taken off the list no longer works.
    assert visitor.post("/sign-up/choose/", CHOSEN).status_code == 404
    SignUpDomain.objects.update(domain="uni.example")
    settings.LOGIN_SETTINGS = LoginSettings(("oidc",), (), ())
    assert Client().get("/sign-up/").status_code == 404
    assert visitor.post("/sign-up/choose/", CHOSEN).status_code == 404
    settings.LOGIN_SETTINGS = LoginSettings(("password",), (), ())
    assert ask("ada@uni.example").status_code == 302
    settings.MAIL_CONFIGURED = False
    assert ask("ada@uni.example").status_code == 404
    settings.MAIL_CONFIGURED = True

    def away(*_args: object) -> None:
        raise OperationalError

    monkeypatch.setattr(tasks.mail_sign_up, "delay", away)
    assert ask("ada@uni.example").status_code == 503
    SignUpDomain.objects.all().delete()
    for answer in (Client().get("/sign-up/"), ask("ada@uni.example")):
        assert answer.status_code == 404
    assert 'href="/sign-up/"' not in page(Client().get("/login/"))
    # The worker decides by the list of that moment.
    assert not sign_up_mail.send(
        typed="ada@uni.example", language="de", now=timezone.now()
    )


@pytest.mark.once
def test_a_person_whose_group_cannot_be_joined_can_sign_in(site, monkeypatch):
    def stale(**_more: object) -> None:
        raise TreeStale(what="vision")

    monkeypatch.setattr(group_members, "admit", stale)
    ask("ada@uni.example", HTTP_ACCEPT_LANGUAGE="de")
    assert "Passwort" in site.mails[0][1].get_content()
    visitor = Client()
    visitor.get(last_link(site))
    assert visitor.post("/sign-up/choose/", CHOSEN).url == "/"
    assert User.objects.get().memberships.count() == 0
    assert AuditEntry.objects.filter(verb="sign-up.group-failed").exists()
