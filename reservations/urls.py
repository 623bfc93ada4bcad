"""Addresses of the calendar, of people's standing, and of each capability."""

from django.urls import path

from reservations.accounts import urls as account_urls
from reservations.booking.calendar_views import calendar
from reservations.fairshare.views import ledger_csv, standing
from reservations.notifications import urls as notice_urls
from reservations.operations import urls as desk_urls
from reservations.reports import urls as report_urls
from reservations.reports.history_views import account_history
from reservations.series import urls as series_urls
from reservations.sharing import urls as people_urls
from reservations.waitlist.views import waiting

urlpatterns = [
    path("calendar/", calendar, name="calendar"),
    path("accounts/<int:pk>/history/", account_history, name="account-history"),
    *account_urls.urlpatterns,
    *desk_urls.urlpatterns,
    *notice_urls.urlpatterns,
    *people_urls.urlpatterns,
    *series_urls.urlpatterns,
    *report_urls.urlpatterns,
    path("waiting/", waiting, name="waiting"),
    path("standing/", standing, name="standing"),
    path("standing/ledger.csv", ledger_csv, name="ledger-csv"),
]
