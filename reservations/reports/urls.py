"""Addresses of the reports, and of replays of the site's own past."""

from django.urls import path

from reservations.reports import views as reports
from reservations.reports.replay import views as replays

urlpatterns = [
    path("manage/reports/", reports.site, name="manage-reports"),
    path("manage/replay/", replays.home, name="manage-replay"),
    path("manage/replay/trace.csv", replays.trace_csv, name="manage-replay-trace"),
    path("manage/replay/<int:pk>/", replays.replay_page, name="manage-replay-one"),
    path("manage/replay/<int:pk>/cancel/", replays.cancel, name="manage-replay-cancel"),
    path("group/<int:pk>/report/", reports.group, name="group-report"),
]
