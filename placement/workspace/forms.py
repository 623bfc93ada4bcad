"""The forms that open a workspace and a terminal."""

from django import forms

from placement.jobs.number_fields import whole_number_field
from placement.protocol.launchers import MOST_FOLDER_CHARACTERS
from telemetry.web.plain_forms import PlainForm


class TerminalForm(PlainForm):
    """The Gpus. The service checks the values."""

    gpu_count = whole_number_field(1, 1024, required=False)
    node = forms.CharField(required=False, max_length=64)


class WorkspaceForm(TerminalForm):
    """The program, its environment, and the Gpus. The service checks the values."""

    app = forms.CharField(max_length=40)
    environment_folder = forms.CharField(
        required=False, max_length=MOST_FOLDER_CHARACTERS
    )
    folder = forms.CharField(required=False, max_length=MOST_FOLDER_CHARACTERS)
