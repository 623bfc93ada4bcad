"""Addresses of bookings that repeat."""

from django.urls import path

from reservations.series import views as series

urlpatterns = [
    path("series/", series.series_list, name="series"),
    path("series/new/", series.series_new, name="series-new"),
    path("series/<int:pk>/", series.series_show, name="series-one"),
    path("series/<int:pk>/end/", series.series_end, name="series-end"),
    path("series/<int:pk>/skip/", series.series_skip, name="series-skip"),
    path("series/<int:pk>/cancel/", series.series_cancel, name="series-cancel"),
]
