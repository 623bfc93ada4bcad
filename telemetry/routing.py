"""Websocket addresses of telemetry: none. Those of the board are in gpuportal."""

from django.urls import URLPattern

websocket_urlpatterns: list[URLPattern] = []
