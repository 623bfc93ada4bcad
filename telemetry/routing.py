"""Websocket addresses of telemetry: none. The board mixes floors: the lobby's."""

from django.urls import URLPattern

websocket_urlpatterns: list[URLPattern] = []
