"""Addresses of the calendar, one Reservation, and one's standing."""

from django.urls import path

from reservations import views
from reservations.views import account_tree, group_head, manage

urlpatterns = [
    path("calendar/", views.calendar, name="calendar"),
    path("reservations/<int:pk>/", views.reservation, name="reservation"),
    path("accounts/<int:pk>/history/", views.account_history, name="account-history"),
    path("manage/", manage.home, name="manage"),
    path("manage/accounts/", account_tree.show, name="manage-accounts"),
    path("group/", group_head.show, name="group"),
    path("standing/", views.standing, name="standing"),
    path("standing/ledger.csv", views.ledger_csv, name="ledger-csv"),
]
