"""Websocket addresses of the calendar."""

from django.urls import URLPattern, path

from reservations.booking.consumers import CalendarConsumer

websocket_urlpatterns: list[URLPattern] = [
    path("ws/calendar/", CalendarConsumer.as_asgi()),  # type: ignore[arg-type]
]
