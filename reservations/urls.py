"""Addresses of the calendar, one Reservation, and one's standing."""

from django.urls import path

from reservations import (
    account_urls,
    desk_urls,
    notice_urls,
    people_urls,
    report_urls,
    views,
)

urlpatterns = [
    path("calendar/", views.calendar, name="calendar"),
    path("reservations/<int:pk>/", views.reservation, name="reservation"),
    path("accounts/<int:pk>/history/", views.account_history, name="account-history"),
    *account_urls.urlpatterns,
    *desk_urls.urlpatterns,
    *notice_urls.urlpatterns,
    *people_urls.urlpatterns,
    *report_urls.urlpatterns,
    path("waiting/", views.waiting, name="waiting"),
    path("standing/", views.standing, name="standing"),
    path("standing/ledger.csv", views.ledger_csv, name="ledger-csv"),
]
