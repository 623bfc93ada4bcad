"""The page of a group head: members, links to join, shares and use."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from reservations.accounts import group_chat, group_members, group_quota, head_shares
from reservations.accounts.low_use import LOW_PCT, HeldUse
from reservations.accounts.low_use_queries import by_member, held_uses
from reservations.accounts.tree import service as accounts
from reservations.accounts.tree.form_rows import (
    read_shares,
)
from reservations.accounts.tree.tree_edits import Edit
from reservations.accounts.tree.tree_outlook import Moved, compare
from reservations.fairshare.group_use import MemberUse, group_of
from reservations.models import Account, Delivery, GroupChat, User
from reservations.notifications.channels import GROUP
from reservations.notifications.forms import WebhookForm
from reservations.notifications.webhook_rules import WebhookRefused
from reservations.rules.errors import NotAllowed
from reservations.store.access import reader
from reservations.store.account_tree import headed_accounts
from reservations.store.booking_facts import site_policy
from reservations.store.usage import usage_by_membership
from reservations.web.credit_field import Unreadable
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import counted
from telemetry.web.error_answers import add_errors, message_of
from telemetry.web.plain_forms import PlainForm
from telemetry.web.query_filters import read_filters, whole_number

MEMBERS_PER_PAGE = 50
LOW_ROWS = 20
CHAT_ROWS = 5
NO_USE = HeldUse()
MEMBER_ACTS = ("add", "remove", "link", "revoke")
CHAT_ACTS = ("chat-set", "chat-on", "chat-drop", "chat-try")


class GroupForm(PlainForm):
    """The group, the time to look back, and the limit of low use."""

    account = forms.IntegerField(required=False, min_value=1, max_value=2**62)
    days = forms.IntegerField(required=False, min_value=1, max_value=365)
    below = forms.IntegerField(required=False, min_value=1, max_value=100)
    page = forms.IntegerField(required=False, min_value=1, max_value=10**6)
    low = forms.IntegerField(required=False, min_value=1, max_value=10**6)


class LinkForm(PlainForm):
    """How long a link to join works, and for how many people."""

    days = forms.TypedChoiceField(
        label=gettext_lazy("Days"),
        choices=[
            (days, counted("{n} day", "{n} days", days))
            for days in group_members.LINK_DAYS
        ],
        coerce=int,
        initial=7,
        widget=forms.Select(attrs={"class": "select"}),
    )
    most_joins = forms.IntegerField(
        min_value=1,
        max_value=group_members.MOST_JOINS,
        initial=30,
        label="People",
        widget=forms.NumberInput(attrs={"class": "input cell-number"}),
    )


@dataclass
class HeadRow:
    """One member as the head sees them."""

    member: MemberUse
    use: HeldUse
    low: bool
    shares: str
    direct: bool
    """Whether it is a member of this group itself, not of one below it."""
    error: str = ""
    moved: Moved | None = None


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def show(request: HttpRequest) -> HttpResponseBase:
    """Show a group to its head; change its members, links and shares."""
    user = reader(request)
    steered = _groups_to_choose(user)
    if not steered:
        raise PermissionDenied
    asked = read_filters(GroupForm, request.GET)
    wanted = asked.values.get("account")
    account = next((a for a in steered if a.pk == wanted), None)
    if account is None and wanted:
        raise PermissionDenied
    account = account or steered[0]
    now = timezone.now()
    more: dict[str, Any] = {"asked": asked, "steered": steered, "account": account}
    if request.method != "POST":
        return _page(request, user, now, more)
    if request.POST.get("act") in MEMBER_ACTS:
        return _members(request, user, account, now, more)
    if request.POST.get("act") in CHAT_ACTS:
        return _chat(request, user, account, now, more)
    if account.pk not in headed_accounts(user):
        # The operator sees this page, and edits under /manage/.
        raise PermissionDenied
    return _take(request, user, account, now, more)


def _members(
    request: HttpRequest,
    user: User,
    account: Account,
    now: datetime,
    more: dict[str, Any],
) -> HttpResponseBase:
    """Add or remove a member, make or revoke a link to join."""
    act = request.POST["act"]
    same: dict[str, Any] = {"user": user, "account_id": account.pk, "now": now}
    try:
        if act == "add":
            name = request.POST.get("username", "")
            group_members.add(username=name, **same)
            messages.success(
                request,
                gettext("%(name)s is now a member of %(account)s.")
                % {"name": name.strip(), "account": account},
            )
        elif act == "remove":
            pk = whole_number(request.POST.get("member", ""))
            group_members.remove(membership_id=pk, **same)
            messages.success(
                request, gettext("Removed. Past use stays with the group.")
            )
        elif act == "revoke":
            pk = whole_number(request.POST.get("link", ""))
            done = group_members.revoke_link(link_id=pk, **same)
            messages.success(
                request,
                gettext("The link no longer works.")
                if done
                else gettext("It had ended."),
            )
        else:
            form = LinkForm(request.POST)
            if not form.is_valid():
                return _page(request, user, now, more, link_form=form, status=422)
            _, text = group_members.make_link(**form.cleaned_data, **same)
            url = request.build_absolute_uri(reverse("join-group", args=[text]))
            return _page(request, user, now, more, fresh_link=url)
    except CodedError as error:
        text = message_of(error)
        return _page(request, user, now, more, refused=text, status=409)
    return redirect(request.get_full_path())


def _chat(
    request: HttpRequest,
    user: User,
    account: Account,
    now: datetime,
    more: dict[str, Any],
) -> HttpResponseBase:
    """Set, try, switch on again or remove the chat of the group."""
    act = request.POST["act"]
    same: dict[str, Any] = {"user": user, "account_id": account.pk, "now": now}
    form = WebhookForm(request.POST if act == "chat-set" else None)
    try:
        if act == "chat-drop":
            group_chat.drop_chat(**same)
            messages.success(request, gettext("Removed."))
        elif act == "chat-on":
            group_chat.enable_chat(**same)
            messages.success(request, gettext("Switched on again."))
        elif act == "chat-try":
            if group_chat.try_chat(**same):
                messages.success(
                    request, gettext("The test message is on its way to the chat.")
                )
            else:
                messages.info(
                    request, gettext("A test message was sent less than a minute ago.")
                )
        elif not form.is_valid():
            return _page(request, user, now, more, chat_form=form, status=422)
        else:
            secret = group_chat.set_chat(
                url=form.cleaned_data["url"],
                format_name=form.cleaned_data["format"],
                **same,
            )
            if secret:
                return _page(request, user, now, more, chat_secret=secret)
            messages.success(request, gettext("Saved. Send a test message to try it."))
    except WebhookRefused as error:
        add_errors(form, error)
        return _page(request, user, now, more, chat_form=form, status=422)
    except NotAllowed as error:
        raise PermissionDenied from error
    except CodedError as error:
        text = message_of(error)
        return _page(request, user, now, more, refused=text, status=409)
    return redirect(request.get_full_path())


def _groups_to_choose(user: User) -> list[Account]:
    """Return the groups to choose from. Those that the User heads come first."""
    rows = Account.objects.filter(archived_at=None).select_related("parent")
    if user.is_operator:
        return list(rows)
    found = list(rows.filter(pk__in=headed_accounts(user)))
    mine = set(
        user.memberships.filter(is_head=True, active=True).values_list(
            "account_id", flat=True
        )
    )
    return sorted(found, key=lambda account: (account.pk not in mine, account.name))


def _take(
    request: HttpRequest,
    user: User,
    account: Account,
    now: datetime,
    more: dict[str, Any],
) -> HttpResponseBase:
    typed, shares, errors = _typed(request)
    if errors:
        return _page(request, user, now, more, typed=typed, errors=errors, status=422)
    if not shares:
        messages.info(request, gettext("No shares were changed."))
        return redirect(request.get_full_path())
    try:
        if request.POST.get("act") != "save":
            edits = head_shares.share_edits(
                user=user, account_id=account.pk, shares=shares
            )
            moved = _rank_changes(edits, now)
            return _page(request, user, now, more, typed=typed, moved=moved)
        head_shares.set_shares(user=user, account_id=account.pk, shares=shares, now=now)
    except CodedError as error:
        text = message_of(error)
        return _page(request, user, now, more, typed=typed, refused=text, status=409)
    messages.success(request, gettext("Saved. The change is in the audit log."))
    return redirect(request.get_full_path())


def _typed(
    request: HttpRequest,
) -> tuple[dict[int, str], dict[int, tuple[int, int]], dict[int, str]]:
    """Return the typed values, the changed ones, and the invalid ones."""
    typed: dict[int, str] = {}
    shares: dict[int, tuple[int, int]] = {}
    errors: dict[int, str] = {}
    for name in request.POST:
        text = request.POST.get(name, "")
        pk = whole_number(name.removeprefix("shares-"))
        if not (pk and name.startswith("shares-")):
            continue
        was, _, version = request.POST.get(f"was-{pk}", "").partition(":")
        if text == was:
            continue
        typed[pk] = text
        try:
            shares[pk] = (read_shares(text), whole_number(version))
        except Unreadable as error:
            errors[pk] = str(error)
    return typed, shares, errors


def _rank_changes(edits: list[Edit], now: datetime) -> dict[int, Moved]:
    """Return members' ranks before and after."""
    done = accounts.preview_edits(edits, now=now)
    accounts.raise_problems(done)
    usage = usage_by_membership(now, site_policy())
    rows = compare(done.before, done.after, usage)
    return {row.pk: row for row in rows if row.table == "member"}


def _chat_context(
    user: User,
    account: Account,
    headed: frozenset[int],
    form: WebhookForm | None,
    secret: str,
) -> dict[str, object]:
    """Return the context of the chat's section, for users with the right to see it."""
    if not group_chat.may_set_chat(user, account, headed):
        return {}
    chat = GroupChat.objects.filter(account=account).first()
    typed = {"url": chat.webhook_url, "format": chat.webhook_format} if chat else {}
    sent = Delivery.objects.filter(channel=GROUP)
    sent = sent.filter(
        Q(notice__reservation__membership__account=account)
        | Q(notice__detail__group=account.pk)
    )
    return {
        "may_set_chat": True,
        "chat": chat,
        "chat_form": form or WebhookForm(initial=typed),
        "chat_secret": secret,
        "chat_sent": sent.select_related("notice__user").order_by("-pk")[:CHAT_ROWS],
        "networks": settings.WEBHOOK_ALLOWED_NETWORKS,
    }


def _page(
    request: HttpRequest,
    user: User,
    now: datetime,
    more: dict[str, Any],
    *,
    typed: dict[int, str] | None = None,
    errors: dict[int, str] | None = None,
    moved: dict[int, Moved] | None = None,
    refused: str = "",
    link_form: LinkForm | None = None,
    fresh_link: str = "",
    chat_form: WebhookForm | None = None,
    chat_secret: str = "",
    status: int = 200,
) -> HttpResponse:
    account: Account = more["account"]
    headed = headed_accounts(user)
    values = more["asked"].values
    days = values.get("days") or 30
    below = values.get("below") or LOW_PCT
    group = group_of(account)
    held = held_uses(group.account_pks, since=now - timedelta(days=days), now=now)
    uses = by_member(held)
    page = Paginator(group.members, MEMBERS_PER_PAGE).get_page(values.get("page") or 1)
    rows = [
        HeadRow(
            member=one,
            use=uses.get(one.membership.pk, NO_USE),
            low=uses.get(one.membership.pk, NO_USE).low(below),
            shares=(typed or {}).get(one.membership.pk, str(one.membership.shares)),
            direct=one.membership.account_id == account.pk,
            error=(errors or {}).get(one.membership.pk, ""),
            moved=(moved or {}).get(one.membership.pk),
        )
        for one in page.object_list
    ]
    low = sorted(
        (one for one in held if one.use.low(below)),
        key=lambda one: -one.use.held_gpu_seconds,
    )
    query = request.GET.copy()
    for name in ("page", "low"):
        query.pop(name, None)
    found = more | {
        "group": group,
        "rows": rows,
        "page": page,
        "days": days,
        "below": below,
        "editable": account.pk in headed,
        "previewed": moved is not None,
        "refused": refused,
        "may_change_members": group_members.may_change_members(user, account, headed),
        "links": [link for link in account.links.all() if link.works(now)],
        "link_form": link_form or LinkForm(),
        "fresh_link": fresh_link,
        **_chat_context(user, account, headed, chat_form, chat_secret),
        "quota": account.quota_gpu_seconds
        if account.quota_gpu_seconds is not None
        else group_quota.sum_of_members(account),
        "low": Paginator(low, LOW_ROWS).get_page(values.get("low") or 1),
        "query": query.urlencode(),
    }
    return render(
        request, "reservations/accounts/group_show.html", found, status=status
    )
