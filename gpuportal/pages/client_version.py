"""Tells programs which version of the students' client this portal offers."""

from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

from gpuportal.pages import client_files

HEADER = "GPUPortal-Client"
API = "/api/"


class ClientVersionMiddleware(MiddlewareMixin):
    """Adds the version to each answer of the API.

    An older client tells its user where to get the new one.
    """

    def process_response(
        self, request: HttpRequest, response: HttpResponse
    ) -> HttpResponse:
        """Add the header."""
        if request.path_info.startswith(API):
            response.headers[HEADER] = client_files.version()
        return response
