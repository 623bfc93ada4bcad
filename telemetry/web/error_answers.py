"""Errors for pages, forms and programs: one function for each."""

from http import HTTPStatus

from django import forms
from django.http import JsonResponse
from django.utils import timezone

from telemetry.protocol.coded_error import PROBLEM_TYPE, CodedError, problem_details
from telemetry.web.translation import translated

RETRY_SECONDS = 5
"""Retry-After of a passing problem, if the error names no time."""


def message_of(error: CodedError) -> str:
    """Return an error's sentences for a person, in the reader's time zone."""
    return error.text(timezone.get_current_timezone())


def add_errors(form: forms.BaseForm, error: CodedError) -> int:
    """Show an error in a form: invalid fields by the field, everything else on top.

    Return the HTTP status of the page with the form.

    Args:
        form: a bound form.
        error: raised by the service.

    Raises:
        CodedError: the same error, if it is a fault of the portal and not the person's.
    """
    if error.status is None:
        raise error
    if not error.fields:
        form.add_error(None, message_of(error))
    for name, text in error.fields.items():
        form.add_error(name if name in form.fields else None, text)
    return error.status


def problem_of(error: CodedError) -> dict[str, object]:
    """Return problem details (RFC 9457) in the reader's language and time zone.

    Raises:
        LookupError: the error has no status; it is a crash.
    """
    return problem_details(error, timezone.get_current_timezone(), translated)


def problem_response(error: CodedError) -> JsonResponse:
    """Answer a program with an error as problem details.

    Raises:
        LookupError: the error has no status; it is a crash.
    """
    response = JsonResponse(
        problem_of(error), status=error.status, content_type=PROBLEM_TYPE
    )
    passes = error.status in (
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.TOO_MANY_REQUESTS,
    )
    if seconds := error.retry_seconds or (RETRY_SECONDS if passes else 0):
        response["Retry-After"] = str(seconds)
    if error.status == HTTPStatus.UNAUTHORIZED:
        response["WWW-Authenticate"] = 'Bearer realm="GPU Portal"'
    response["Cache-Control"] = "no-store"
    return response
