"""A policy as one row of the database, made from its declared rules."""

from typing import TYPE_CHECKING, Any, Self, TypeVar

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from telemetry.rules.policy_declaration import (
    PolicyInvalid,
    PolicyRule,
    rules_of,
    values_of,
)

T = TypeVar("T")
CODES_LENGTH = 400
CHOICE_LENGTH = 8


def column_of(rule: PolicyRule) -> "models.Field[Any, Any]":
    """Return the model field of a rule: its type, default, limits and help text."""
    options: dict[str, Any] = {"default": rule.row_default, "help_text": rule.help}
    if rule.column_label:
        options["verbose_name"] = rule.column_label
    if rule.kind == "switch":
        return models.BooleanField(**options)
    if rule.kind == "words":
        return models.CharField(max_length=CODES_LENGTH, blank=True, **options)
    if rule.kind == "lines":
        return models.TextField(blank=True, **options)
    if rule.kind == "choice":
        choices = [(one.value, one.label) for one in type(rule.default)]
        return models.CharField(max_length=CHOICE_LENGTH, choices=choices, **options)
    if rule.default is None:
        options = {"null": True, "blank": True, "help_text": rule.help}
    least, most = rule.row_limits
    made = _number_field(rule)
    validators: list[Any] = []
    # For a count of bytes the column's own minimum counts.
    if least is not None and made is not models.PositiveBigIntegerField:
        validators.append(MinValueValidator(least))
    if most is not None:
        validators.append(MaxValueValidator(most))
    return made(validators=validators, **options)


def _number_field(rule: PolicyRule) -> Any:
    if rule.kind == "ratio":
        return models.FloatField
    if rule.name.endswith("_gpu_seconds"):
        return models.BigIntegerField
    if rule.name.endswith(("_bytes", "_bytes_per_second")):
        return models.PositiveBigIntegerField
    if rule.most is None or rule.name.endswith(("_seconds", "_mib")):
        return models.PositiveIntegerField
    return models.PositiveSmallIntegerField


class PolicyColumns:
    """Adds a column to a model for each rule of some policies."""

    def __init__(self, *policies: type) -> None:
        self.policies = policies
        self.rules = tuple(rule for policy in policies for rule in rules_of(policy))

    def contribute_to_class(self, model: type[models.Model], name: str) -> None:
        """Add the columns while Django makes the model."""
        for rule in self.rules:
            model.add_to_class(rule.column, column_of(rule))  # type: ignore[attr-defined]
        setattr(model, name, self)


class PolicyRow(models.Model):
    """One row, with the columns that ``declared`` adds."""

    declared: PolicyColumns

    class Meta:
        abstract = True

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a column. The type checker does not see the columns that are
            added.
            """

        def __setattr__(self, name: str, value: Any) -> None:
            """Set a column."""

    def clean(self) -> None:
        """Refuse rules that contradict each other.

        Raises:
            ValidationError: on the field that is wrong.
        """
        columns = {rule.name: rule.column for rule in self.declared.rules}
        for policy in self.declared.policies:
            try:
                self.value_of(policy)
            except PolicyInvalid as invalid:
                name = columns.get(invalid.field, invalid.field)
                raise ValidationError({name: invalid.detail}) from invalid

    def value_of(self, policy: type[T], **more: Any) -> T:
        """Return the frozen value of one of the policies.

        Args:
            more: fields of the value that are not rules.

        Raises:
            PolicyInvalid: the row contradicts itself.
        """
        return policy(**values_of(policy, self), **more)

    @classmethod
    def current(cls) -> Self:
        """Return the one row. It is made with the defaults if it is missing."""
        rows = cls._default_manager
        return rows.filter(pk=1).first() or rows.get_or_create(pk=1)[0]
