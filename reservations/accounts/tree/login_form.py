"""The fields of forms in which operators type user names and Unix users."""

import copy
from typing import Any

from django import forms
from django.contrib.auth.forms import UsernameField
from django.core.validators import RegexValidator

from reservations.accounts.tree.tree_edits import NEW_LOGIN
from reservations.store.unix_logins import login_fault
from telemetry.protocol.sentences import sentence
from telemetry.web.plain_forms import PlainErrors

new_login_valid = RegexValidator(
    rf"^{NEW_LOGIN.pattern}\Z", sentence("Letters, digits and @ . + - _ only.")
)


class NewLoginField(UsernameField):
    """The user name of a new person, read as the page Sign in reads it (NFKC)."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=150, validators=[new_login_valid], **kwargs)


class LoginFormMixin(PlainErrors, forms.BaseModelForm):
    """A form of a person, which refuses the Unix login of another person."""

    def clean(self) -> dict[str, Any]:
        """Show by the field why a user name or a Unix user cannot be saved."""
        found = super().clean() or self.cleaned_data
        # Django's form of a new login keeps a refused name as None.
        changed = [name for name in self.changed_data if found.get(name) is not None]
        if "username" in changed and not NEW_LOGIN.fullmatch(found["username"]):
            self.add_error("username", new_login_valid.message)
            return found
        if not {"username", "unix_user"} & set(self.errors):
            person = copy.copy(self.instance)
            for name in ("username", "unix_user", "is_active"):
                if name in found:
                    setattr(person, name, found[name])
            fault = login_fault(person, changed)
            if fault is not None:
                self.add_error(fault.field, fault.text)
        return found
