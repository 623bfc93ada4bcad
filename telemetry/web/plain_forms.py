"""Forms with error sentences for people.

Every form of the project derives from one of these two classes. They replace Django's
sentences ("Ensure this value is less than or equal to 5.", "Select a valid choice.") by
plain ones that name the valid input. A field's own sentences stay.
"""

from collections.abc import Iterator
from typing import Any

from django import forms
from django.core import validators
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as lazy
from django.utils.translation import gettext_noop as noop

from telemetry.web.printable import has_controls

SWITCHES = frozenset(("", "on", "yes", "true", "false", "1"))
"""What a form may send for a checkbox. Django reads every other text as "on"."""
MOST_BOUND_SHOWN = 10**9
"""A larger bound is a technical limit, which helps nobody to type the right number."""


class PlainErrors(forms.BaseForm):
    """Mixin: a form with errors in plain words."""

    def full_clean(self) -> None:
        """Validate, with plain sentences on every field, including fields added
        late.
        """
        for field in self.fields.values():
            _speak_plainly(field)
            _refuse_controls(field)
        super().full_clean()
        if self.is_bound:
            self._check_switches()
        # Some checks of Django do not use the field's own sentences.
        if self.errors:
            # Both sides are in the reader's language.
            plain = {str(django): words for django, words in _OF_VALIDATORS}
            for errors in self.errors.as_data().values():
                for error in errors:
                    error.message = plain.get(str(error.message), error.message)

    def _check_switches(self) -> None:
        """Refuse texts that Django reads as "on", such as "maybe" and "off"."""
        for name, field in self.fields.items():
            if not isinstance(field.widget, forms.CheckboxInput):
                continue
            typed = self.data.get(self.add_prefix(name), "")
            if isinstance(typed, str) and typed.lower() not in SWITCHES:
                self.add_error(name, gettext("Enter “on”, or leave it out."))


def check_text(value: Any) -> None:
    """Refuse control characters, except tabs and line breaks.

    Raises:
        ValidationError: there are some.
    """
    if isinstance(value, str) and has_controls(value, layout=True):
        raise forms.ValidationError(gettext("Control characters are not allowed."))


def _refuse_controls(field: forms.Field) -> None:
    """Give a field of text the check that the schemas of the API have.

    Line breaks stay allowed, because templates show some of these fields as areas.
    """
    known = check_text in field.validators
    hidden = isinstance(field.widget, forms.PasswordInput)
    if isinstance(field, forms.CharField) and not known and not hidden:
        field.validators.append(check_text)


def _speak_plainly(field: forms.Field) -> None:
    """Replace Django's sentences of a field, and of the fields that it consists of."""
    own = {
        code: text
        for code, text in field.error_messages.items()
        if text != _DJANGO.get((_first_class(field, code) or forms.Field, code))
    }
    field.error_messages = plain_messages(field) | own
    for part in getattr(field, "fields", ()):
        _speak_plainly(part)


class PlainForm(PlainErrors, forms.Form):
    """A form with plain errors."""


class PlainModelForm(PlainErrors, forms.ModelForm):  # type: ignore[type-arg]
    """A form of a row, with plain errors, those of the model's fields included."""

    def full_clean(self) -> None:
        """Validate. The row's own bounds may be stricter than the form field's."""
        columns = {one.name: one for one in self.instance._meta.fields}
        for name, field in self.fields.items():
            if name in columns:
                _take_bounds(field, columns[name])
        super().full_clean()


def _take_bounds(field: Any, column: Any) -> None:
    """Give a field the tightest of its bounds and those of its column.

    Its errors then name these bounds, and the row is checked only with numbers inside.
    """
    if not hasattr(field, "min_value"):
        return
    bounds = (validators.MinValueValidator, validators.MaxValueValidator)
    least, most = [field.min_value], [field.max_value]
    for check in column.validators:
        if isinstance(check, bounds):
            limit = check.limit_value
            ends = least if isinstance(check, bounds[0]) else most
            ends.append(limit() if callable(limit) else limit)
    field.min_value = max((end for end in least if end is not None), default=None)
    field.max_value = min((end for end in most if end is not None), default=None)
    kept = [check for check in field.validators if not isinstance(check, bounds)]
    if field.min_value is not None:
        kept.append(bounds[0](field.min_value))
    if field.max_value is not None:
        kept.append(bounds[1](field.max_value))
    field.validators = kept


def _first_class(field: forms.Field, code: str) -> type | None:
    """Return the class whose default sentence a field has for an error."""
    for kind in type(field).__mro__:
        if code in vars(kind).get("default_error_messages", {}):
            return kind
    return None


def _defaults(kind: type[forms.Field]) -> Iterator[tuple[tuple[type, str], str]]:
    for code, text in vars(kind).get("default_error_messages", {}).items():
        yield (kind, code), text
    for below in kind.__subclasses__():
        if below.__module__.startswith("django."):
            yield from _defaults(below)


_OF_VALIDATORS = (
    (
        validators.ProhibitNullCharactersValidator.message,
        lazy("Remove the null characters."),
    ),
    (
        validators.validate_slug.message,
        lazy("Use letters, figures, hyphens and underscores only."),
    ),
    (
        validators.validate_email.message,
        lazy("Enter a mail address, such as name@example.org."),
    ),
    (
        validators.URLValidator.message,
        lazy("Enter an address, such as https://example.org/."),
    ),
)
"""Django's sentence of a validator, and a plain one."""
_DJANGO = dict(_defaults(forms.Field))
"""Django's class of field and error to its sentence."""


def plain_messages(field: forms.Field) -> dict[str, Any]:
    """Return error to sentence for a field.

    Pages show each sentence beside its field's label, so it does not repeat the label.
    The names are Django's codes; ``%(value)s`` and the like are filled in by Django.

    >>> plain_messages(forms.IntegerField(min_value=1, max_value=5))["invalid"]
    'Enter a whole number from 1 to 5.'
    >>> plain_messages(forms.CharField())["required"]
    'Fill this in.'
    """
    found = {
        "required": gettext("Fill this in."),
        "max_length": gettext(
            "Use %(limit_value)d characters at most; there are %(show_value)d."
        ),
        "min_length": gettext(
            "Use %(limit_value)d characters or more; there are %(show_value)d."
        ),
        "null_characters_not_allowed": gettext("Remove the null characters."),
        "unique": gettext("This name or number is already in use."),
    }
    if isinstance(field, forms.IntegerField | forms.FloatField | forms.DecimalField):
        found |= _number_messages(field)
    elif isinstance(field, forms.FileField):
        found |= {
            "required": gettext("Choose a file."),
            "invalid": gettext("No file arrived. Choose it again."),
            "missing": gettext("No file arrived. Choose it again."),
            "empty": gettext("The file is empty."),
            "max_length": gettext(
                "The file's name is too long: use %(max)d characters at most."
            ),
            "contradiction": gettext(
                "Either choose a new file or remove the current one."
            ),
        }
    elif isinstance(field, forms.ChoiceField | forms.ModelChoiceField):
        found |= {
            "required": gettext("Choose a value."),
            "invalid_choice": gettext("Choose one of the values in the list."),
            "invalid_list": gettext("Choose values from the list."),
            "invalid_pk_value": gettext("Choose values from the list."),
            "list": gettext("Choose values from the list."),
        }
    elif (example := _example(field)) is not None:
        codes = ("invalid", "overflow", "incomplete", "invalid_date", "invalid_time")
        found |= dict.fromkeys(codes, gettext(example))
    return found


def _number_messages(field: Any) -> dict[str, str]:
    least, most = _bound_text(field.min_value), _bound_text(field.max_value)
    # Django derives the two from IntegerField.
    whole = not isinstance(field, forms.FloatField | forms.DecimalField)
    if least and most and whole:
        words = gettext("Enter a whole number from %(least)s to %(most)s.")
    elif least and most:
        words = gettext("Enter a number from %(least)s to %(most)s.")
    elif least and whole:
        words = gettext("Enter a whole number, %(least)s or more.")
    elif least:
        words = gettext("Enter a number, %(least)s or more.")
    elif most and whole:
        words = gettext("Enter a whole number, %(most)s or less.")
    elif most:
        words = gettext("Enter a number, %(most)s or less.")
    elif whole:
        words = gettext("Enter a whole number.")
    else:
        words = gettext("Enter a number.")
    words %= {"least": least, "most": most}
    found = dict.fromkeys(("invalid", "min_value", "max_value"), words)
    if not most:
        found["max_value"] = gettext("This number is too large.")
    found["step_size"] = gettext("Enter a multiple of %(limit_value)s.")
    digits = gettext("Use fewer digits.")
    return found | dict.fromkeys(
        ("max_digits", "max_decimal_places", "max_whole_digits"), digits
    )


def _bound_text(bound: Any) -> str:
    """Return a bound in figures; "" for no bound, or for one that is out of reach."""
    value = bound() if callable(bound) else bound
    if value is None or abs(value) > MOST_BOUND_SHOWN:
        return ""
    return f"{int(value):,}" if value == int(value) else f"{value:,}"


def _example(field: forms.Field) -> str | None:
    """Return what to enter, with an example; None if the field takes any text.

    The sentence is English, for gettext.
    """
    kinds: tuple[tuple[type[forms.Field], str], ...] = (
        (forms.EmailField, noop("Enter a mail address, such as name@example.org.")),
        (forms.URLField, noop("Enter an address, such as https://example.org/.")),
        (
            forms.SlugField,
            noop("Enter letters, figures, hyphens and underscores only."),
        ),
        (
            forms.SplitDateTimeField,
            noop("Enter a date and a time, such as 2026-11-21 14:00."),
        ),
        (
            forms.DateTimeField,
            noop("Enter a date and a time, such as 2026-11-21 14:00."),
        ),
        (forms.DateField, noop("Enter a date, such as 2026-11-21.")),
        (forms.TimeField, noop("Enter a time, such as 14:00.")),
        (forms.DurationField, noop("Enter a length of time, such as 04:00:00.")),
        (forms.JSONField, noop("Enter valid JSON.")),
        (forms.UUIDField, noop("Enter a UUID.")),
        (forms.GenericIPAddressField, noop("Enter an IP address, such as 192.0.2.1.")),
    )
    return next((words for kind, words in kinds if isinstance(field, kind)), None)
