"""Forms to plan a model, launch a Job, and filter a list of Jobs."""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy

from placement.jobs.gap_fields import GapFields
from placement.jobs.launch_checks import MOST_RETRIES
from placement.jobs.number_fields import whole_number_field
from placement.planner.launch.recipes import (
    RECIPES,
    Recipe,
    RecipeSetting,
    checked_settings,
)
from placement.planner.model.well_known import WELL_KNOWN
from placement.planner.search.card_support import completed_workload
from placement.planner.values.errors import LaunchInvalid
from placement.planner.values.objective import OBJECTIVE_WORDS, OBJECTIVES
from placement.planner.values.workload import Workload
from placement.protocol.job_lifecycle import JobState
from placement.protocol.launchers import MOST_FOLDER_CHARACTERS, Launcher
from placement.rules.job_refusals import StrategyNotRunnable
from placement.rules.rebalance_policy import RestartMode
from placement.rules.sweep import Sweep, read_sweep
from telemetry.protocol.codec import Malformed, decode
from telemetry.protocol.gpu_cards import GpuCard
from telemetry.web.local_time_field import LocalTimeField
from telemetry.web.plain_forms import PlainForm
from telemetry.web.translation import translated

MOST_SCRIPT_CHARACTERS = 256 * 1024
MOST_BESIDE_CHARACTERS = 2 * 2**20
"""Of the files beside a script as JSON, which is longer than their text."""
SCRIPT = "script"
OF_SETTING = "recipe_settings."
Choices = Sequence[tuple[int, str]]
"""(number, words) of the choices of a select."""
MOST_DAYS_AHEAD = 366
MOST_TARGET_CHARACTERS = 400


def most_days_ahead(now: datetime) -> datetime:
    """Return the latest start for which a plan may be made."""
    return now + timedelta(days=MOST_DAYS_AHEAD)


class JobFilterForm(PlainForm):
    """Filters of a list of Jobs. Other values in the address are ignored."""

    q = forms.CharField(required=False, max_length=120)
    state = forms.ChoiceField(
        required=False, choices=[("", "any")] + [(s.value, s.label) for s in JobState]
    )
    whose = forms.ChoiceField(
        required=False, choices=[("", "all"), ("mine", "mine"), ("others", "others'")]
    )
    reservation = forms.IntegerField(required=False, min_value=1, max_value=2**62)
    array = forms.IntegerField(required=False, min_value=1, max_value=2**62)


@dataclass(frozen=True)
class SettingInput:
    """One setting of a recipe for the page."""

    name: str
    setting: RecipeSetting
    value: str
    errors: Sequence[str]


class LaunchForm(GapFields):
    """A Job to launch: its place, its name, and its program."""

    reservation = forms.TypedChoiceField(required=False, coerce=int, empty_value=None)
    name = forms.CharField(
        max_length=120,
        error_messages={
            "required": gettext_lazy("Give the job a name, so that you find it again.")
        },
    )
    what = forms.ChoiceField(
        choices=[(name, name) for name in RECIPES] + [(SCRIPT, SCRIPT)]
    )
    script = forms.CharField(
        required=False, max_length=MOST_SCRIPT_CHARACTERS, strip=False
    )
    beside = forms.CharField(
        required=False, max_length=MOST_BESIDE_CHARACTERS, strip=False
    )
    arguments = forms.CharField(required=False, max_length=4000)
    launcher = forms.ChoiceField(
        required=False, choices=[(way.value, way.label) for way in Launcher]
    )
    environment_folder = forms.CharField(
        required=False, max_length=MOST_FOLDER_CHARACTERS
    )
    node = forms.ChoiceField(required=False)
    plan = forms.IntegerField(required=False, min_value=1, max_value=2**62)
    strategy = forms.CharField(required=False, max_length=40)
    gpu_count = whole_number_field(1, 1024, required=False)
    retry_failed = forms.BooleanField(required=False)
    sweep = forms.CharField(required=False, max_length=4000)
    resume_from = forms.IntegerField(required=False, min_value=1, max_value=2**62)
    after = forms.IntegerField(required=False, min_value=1, max_value=2**62)
    retries = whole_number_field(0, MOST_RETRIES, required=False, initial=0)
    may_move = forms.BooleanField(required=False)
    restart = forms.ChoiceField(
        required=False, choices=[(way.value, way.label) for way in RestartMode]
    )

    def __init__(
        self,
        *args: object,
        reservations: Choices,
        nodes: Sequence[str] = (),
        first_settings: Mapping[str, object] | None = None,
        **kwargs: object,
    ) -> None:
        """Set the choices: Reservations, and nodes if a Reservation spans several.

        ``first_settings`` are the initial values of the recipes' fields by their names,
        such as ``burn-in.seconds``.
        """
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.recipe_settings: dict[str, object] = {}
        self.refusal: StrategyNotRunnable | None = None
        """Why the recipe cannot run the Plan. It may name another one."""
        self.setting_errors: dict[str, str] = {}
        self.first_settings = first_settings or {}
        field, node = self.fields["reservation"], self.fields["node"]
        assert isinstance(field, forms.TypedChoiceField)
        assert isinstance(node, forms.ChoiceField)
        field.choices = list(reservations)
        node.choices = [
            ("", gettext_lazy("the only one")),
            *((name, name) for name in nodes),
        ]

    def clean_sweep(self) -> Sweep:
        """Read the sweep.

        Raises:
            ValidationError: with the wrong line.
        """
        try:
            return read_sweep(self.cleaned_data["sweep"])
        except LaunchInvalid as wrong:
            raise forms.ValidationError(wrong.fields["sweep"]) from None

    def clean_beside(self) -> dict[str, str]:
        """Read the files beside the script, texts by path as JSON.

        Raises:
            ValidationError: it is something else.
        """
        text = self.cleaned_data["beside"]
        try:
            return decode(dict[str, str], text) if text else {}
        except Malformed as error:
            raise forms.ValidationError(
                gettext_lazy("cannot be read: %(error)s") % {"error": error}
            ) from None

    def clean_arguments(self) -> list[str]:
        """Split the arguments like a shell.

        Raises:
            ValidationError: a quote is not closed.
        """
        try:
            return shlex.split(self.cleaned_data["arguments"])
        except ValueError as error:
            raise forms.ValidationError(
                gettext_lazy("cannot be split: %(error)s") % {"error": error}
            ) from None

    def clean(self) -> dict[str, object]:
        """Check the script, or the settings of the chosen recipe."""
        data = super().clean() or self.cleaned_data
        self.check_where(data)
        what = data.get("what", "")
        if what == SCRIPT and not str(data.get("script", "")).strip():
            self.add_error("script", gettext_lazy("Paste the script that should run."))
        if what in RECIPES:
            given = {
                s.name: _number(self.data.get(f"{what}.{s.name}", ""), s)
                for s in RECIPES[what].settings
                if self.data.get(f"{what}.{s.name}", "") != ""
            }
            try:
                self.recipe_settings = checked_settings(what, given)
            except LaunchInvalid as error:
                self.setting_errors = {
                    key.removeprefix(OF_SETTING): text
                    for key, text in error.fields.items()
                }
                for name in self.setting_errors:
                    self.add_error(None, _wrong_setting(RECIPES[what], name))
        return data

    def add_problem(self, field: str, text: str) -> None:
        """Add a problem that a service found, at its field or at the recipe's
        setting.
        """
        if field.startswith(OF_SETTING):
            self.setting_errors[field.removeprefix(OF_SETTING)] = text
            recipe = RECIPES.get(str(self.data.get("what")))
            self.add_error(None, _wrong_setting(recipe, field.removeprefix(OF_SETTING)))
        else:
            field = "beside" if field == "files" else field
            self.add_error(field if field in self.fields else None, text)

    def inputs(self, recipe: Recipe) -> list[SettingInput]:
        """Return a recipe's settings as they were typed, with their errors."""
        chosen = self.data.get("what") == recipe.name
        return [
            SettingInput(
                name=f"{recipe.name}.{setting.name}",
                setting=setting,
                value=self.data.get(
                    f"{recipe.name}.{setting.name}",
                    str(
                        self.first_settings.get(
                            f"{recipe.name}.{setting.name}", setting.default
                        )
                    ),
                ),
                errors=[
                    text
                    for name, text in self.setting_errors.items()
                    if chosen and name == setting.name
                ],
            )
            for setting in recipe.settings
        ]


def _wrong_setting(recipe: Recipe | None, name: str) -> str:
    """Return the sentence above the form that names an invalid setting."""
    labels = {one.name: one.label for one in (recipe.settings if recipe else ())}
    label = translated(labels.get(name, name))
    return gettext("Correct the setting “%(label)s” of the recipe.") % {"label": label}


def _number(text: str, setting: RecipeSetting) -> object:
    """Parse a typed number. Other text is kept, and its field refuses it."""
    if setting.kind is str:
        return text
    try:
        value = float(text.strip().replace(",", "."))
    except ValueError:
        return text
    return value if math.isfinite(value) else text


class FilesInput(forms.ClearableFileInput):
    """A choice of several files at once: an index and its shards."""

    allow_multiple_selected = True


class FilesField(forms.FileField):
    """Several files. Empty: none."""

    widget = FilesInput

    def clean(self, data: Any, initial: Any = None) -> list[Any]:
        """Check every file with Django's checks.

        Raises:
            ValidationError: one of them is empty, or its name is too long.
        """
        given = data if isinstance(data, list | tuple) else [data]
        cleaned = [super(FilesField, self).clean(one, initial) for one in given]
        return [one for one in cleaned if one]


BY_CARD = gettext_lazy("automatic")
"""An empty choice: the precision and the attention that suit the cards."""


class PlanForm(PlainForm):
    """A model, its workload, the start, the duration and the number of Gpus."""

    source = forms.ChoiceField(
        label=gettext_lazy("Source"),
        choices=[
            ("known", gettext_lazy("built-in list")),
            ("file", gettext_lazy("your file")),
        ],
        initial="known",
    )
    known = forms.ChoiceField(
        label=gettext_lazy("Model"),
        choices=[(k.name, k.title) for k in WELL_KNOWN.values()],
        initial="gpt2",
    )
    model = forms.TypedChoiceField(
        label=gettext_lazy("Model"), required=False, coerce=int, empty_value=None
    )
    upload = FilesField(
        label=gettext_lazy("File"), required=False, allow_empty_file=False
    )
    task = forms.ChoiceField(
        label=gettext_lazy("Task"),
        choices=[("train", gettext_lazy("Train")), ("infer", gettext_lazy("Infer"))],
        initial="train",
    )
    precision = forms.ChoiceField(
        label=gettext_lazy("Precision"),
        required=False,
        choices=[
            ("", BY_CARD),
            ("autocast_bf16", gettext_lazy("bf16 autocast")),
            ("bf16", gettext_lazy("pure bf16")),
            ("mixed_fp16", gettext_lazy("fp16 with fp32 master")),
            ("fp16", gettext_lazy("pure fp16")),
            ("fp32", "fp32"),
            ("autocast_fp16", gettext_lazy("fp16 autocast")),
            ("megatron_bf16", gettext_lazy("bf16, Megatron-style")),
        ],
    )
    optimizer = forms.ChoiceField(
        label=gettext_lazy("Optimizer"),
        choices=[
            ("adamw", "AdamW"),
            ("adam", "Adam"),
            ("adam8bit", gettext_lazy("Adam, 8 bits")),
            ("adamw8bit", gettext_lazy("AdamW, 8 bits")),
            ("adafactor", "Adafactor"),
            ("lion", "Lion"),
            ("lion8bit", gettext_lazy("Lion, 8 bits")),
            ("muon", gettext_lazy("Muon, AdamW where it does not apply")),
            ("rmsprop", "RMSprop"),
            ("rmsprop8bit", gettext_lazy("RMSprop, 8 bits")),
            ("momentum", gettext_lazy("SGD with momentum")),
            ("sgd", "SGD"),
        ],
        initial="adamw",
    )
    batch = forms.IntegerField(
        label=gettext_lazy("Batch"), initial=8, min_value=1, max_value=2**20
    )
    sequence_length = forms.IntegerField(
        label=gettext_lazy("Sequence length"), initial=512, min_value=1, max_value=2**22
    )
    checkpointing = forms.ChoiceField(
        label=gettext_lazy("Checkpointing"),
        choices=[
            ("none", gettext_lazy("none")),
            ("selective", gettext_lazy("selective")),
            ("full", gettext_lazy("full")),
        ],
        initial="none",
    )
    accumulation = forms.IntegerField(
        label=gettext_lazy("Accumulation"), initial=1, min_value=1, max_value=2**20
    )
    attention = forms.ChoiceField(
        label=gettext_lazy("Attention"),
        required=False,
        choices=[
            ("", BY_CARD),
            ("flash", "flash"),
            ("efficient", gettext_lazy("efficient: older cards too")),
            ("math", "math"),
            ("eager", "eager"),
        ],
    )
    offload = forms.ChoiceField(
        label=gettext_lazy("Offload"),
        required=False,
        choices=[
            ("none", gettext_lazy("none")),
            ("cpu", gettext_lazy("to the memory of the host")),
            ("nvme", gettext_lazy("to the drive of the host")),
        ],
        initial="none",
    )
    offload_parameters = forms.BooleanField(
        label=gettext_lazy("Offload the weights too"), required=False
    )
    weights = forms.ChoiceField(
        label=gettext_lazy("Weights"),
        required=False,
        choices=[
            ("full", gettext_lazy("unchanged")),
            ("int8", gettext_lazy("8 bits (int8)")),
            ("nf4", gettext_lazy("4 bits (nf4)")),
        ],
        initial="full",
    )
    lora_rank = forms.IntegerField(
        label=gettext_lazy("LoRA rank"), required=False, min_value=0, max_value=2**14
    )
    lora_targets = forms.CharField(
        label=gettext_lazy("LoRA layers"),
        required=False,
        max_length=MOST_TARGET_CHARACTERS,
    )
    wish = forms.ChoiceField(
        label=gettext_lazy("Optimize for"),
        required=False,
        choices=[(one, OBJECTIVE_WORDS[one]) for one in ("", *OBJECTIVES)],
    )
    reservation = forms.TypedChoiceField(
        label=gettext_lazy("Reservation"), required=False, coerce=int, empty_value=None
    )
    at = LocalTimeField(label=gettext_lazy("From"), required=False)
    hours = forms.FloatField(
        label=gettext_lazy("Hours"), initial=4, min_value=0.1, max_value=336
    )
    max_gpus = forms.IntegerField(
        label=gettext_lazy("GPUs at most"), required=False, min_value=1, max_value=64
    )

    def __init__(
        self,
        *args: object,
        reservations: Choices = (),
        models: Choices = (),
        **kwargs: object,
    ) -> None:
        """Set the choices: the User's Reservations and earlier files."""
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.reservations, self.models = list(reservations), list(models)
        where, model = self.fields["reservation"], self.fields["model"]
        assert isinstance(where, forms.TypedChoiceField)
        assert isinstance(model, forms.TypedChoiceField)
        where.choices = [("", gettext_lazy("any free GPUs")), *self.reservations]
        model.choices = [("", gettext_lazy("new")), *self.models]

    def clean_at(self) -> datetime | None:
        """Return a time that the calendar could show. None: now.

        Raises:
            ValidationError: too far ahead.
        """
        at: datetime | None = self.cleaned_data["at"]
        if at is not None and at > most_days_ahead(timezone.now()):
            raise forms.ValidationError(
                gettext_lazy("Choose a time at most %(most_days_ahead)s days ahead.")
                % {"most_days_ahead": MOST_DAYS_AHEAD}
            )
        return at

    def clean_lora_targets(self) -> tuple[str, ...]:
        """Split names at commas or spaces."""
        return tuple(self.cleaned_data["lora_targets"].replace(",", " ").split())

    def workload(self, cards: Iterable[GpuCard | None]) -> Workload:
        """Return the Workload that the valid form describes.

        Args:
            cards: on which a precision or an attention that was not chosen must run.

        Raises:
            WorkloadInvalid: the fields contradict each other.
        """
        data = self.cleaned_data
        trains = data["task"] == "train"
        offload: Any = data["offload"] or "none"
        asked = {
            "task": data["task"],
            "batch": data["batch"],
            "sequence_length": data["sequence_length"],
            "optimizer": data["optimizer"],
            "checkpointing": data["checkpointing"] if trains else "none",
            "accumulation": data["accumulation"] if trains else 1,
            "offload": offload,
            # Without optimizer state only the weights can be offloaded.
            "offload_parameters": offload != "none"
            and (data["offload_parameters"] or not trains),
        }
        chosen = {one: data[one] for one in ("precision", "attention") if data[one]}
        return completed_workload({**asked, **chosen}, cards)


class BookPlanForm(PlainForm):
    """The start, the duration and the membership for booking a saved Plan's Gpus."""

    at = LocalTimeField(label=gettext_lazy("From"), required=False)
    hours = forms.FloatField(label=gettext_lazy("Hours"), min_value=0.1, max_value=336)
    membership = forms.IntegerField(
        label=gettext_lazy("Membership"), required=False, min_value=1, max_value=2**62
    )
    key = forms.CharField(required=False, max_length=64)

    clean_at = PlanForm.clean_at
