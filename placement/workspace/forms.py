"""The forms that open a workspace and a terminal."""

from typing import Any

from django import forms

from placement.jobs.number_fields import whole_number_field
from placement.protocol.launchers import MOST_FOLDER_CHARACTERS
from reservations.models import Membership, User
from telemetry.web.plain_forms import PlainForm

MOST_HOURS = 24
"""Of a booking that starts a program in one step."""


class TerminalForm(PlainForm):
    """The node. The service checks it."""

    node = forms.CharField(required=False, max_length=64)


class QuickForm(PlainForm):
    """One Gpu from now, with the usual program. The service checks the rules."""

    gpu = whole_number_field(1, 2**31 - 1)
    hours = whole_number_field(1, MOST_HOURS)
    environment_folder = forms.CharField(
        required=False, max_length=MOST_FOLDER_CHARACTERS
    )
    membership = forms.ModelChoiceField(Membership.objects.none(), required=False)

    def __init__(self, user: User, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["membership"]
        assert isinstance(field, forms.ModelChoiceField)
        own = user.memberships.filter(active=True, account__archived_at=None)
        field.queryset = own.select_related("account")


class WorkspaceForm(TerminalForm):
    """The program, its environment, and the Gpus. The service checks the values."""

    app = forms.CharField(max_length=40)
    gpu_count = whole_number_field(1, 1024, required=False)
    environment_folder = forms.CharField(
        required=False, max_length=MOST_FOLDER_CHARACTERS
    )
    folder = forms.CharField(required=False, max_length=MOST_FOLDER_CHARACTERS)
