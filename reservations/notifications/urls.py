"""Addresses of Notices and of their settings."""

from django.urls import path

from reservations.notifications import views as notices

urlpatterns = [
    path("notices/", notices.notices, name="notices"),
    path("notices/read/", notices.notices_read, name="notices-read"),
    path("notices/off/<str:token>/", notices.notices_off, name="notices-off"),
    path("me/notices/", notices.notice_settings, name="notice-settings"),
    path("me/notices/choose/", notices.notice_choose, name="notice-choose"),
    path("me/notices/mute/", notices.notice_mute, name="notice-mute"),
    path("me/notices/webhook/", notices.notice_webhook, name="notice-webhook"),
    path("me/notices/try/", notices.notice_try, name="notice-try"),
]
