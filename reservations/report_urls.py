"""Addresses of the reports, and of replays of the site's own past."""

from django.urls import path

from reservations.views import reports

urlpatterns = [
    path("manage/reports/", reports.site, name="manage-reports"),
    path("group/<int:pk>/report/", reports.group, name="group-report"),
]
