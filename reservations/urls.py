"""Addresses of the calendar, one Reservation, and one's standing."""

from django.urls import path

from reservations import account_urls, desk_urls, notice_urls, people_urls, report_urls
from reservations.views.calendar import calendar
from reservations.views.history import account_history
from reservations.views.reservation import reservation
from reservations.views.standing import ledger_csv, standing
from reservations.views.waiting import waiting

urlpatterns = [
    path("calendar/", calendar, name="calendar"),
    path("reservations/<int:pk>/", reservation, name="reservation"),
    path("accounts/<int:pk>/history/", account_history, name="account-history"),
    *account_urls.urlpatterns,
    *desk_urls.urlpatterns,
    *notice_urls.urlpatterns,
    *people_urls.urlpatterns,
    *report_urls.urlpatterns,
    path("waiting/", waiting, name="waiting"),
    path("standing/", standing, name="standing"),
    path("standing/ledger.csv", ledger_csv, name="ledger-csv"),
]
