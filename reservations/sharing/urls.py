"""Addresses of sharing, offers, and a User's calendar for other programs."""

from django.urls import path

from reservations.sharing import feed_views
from reservations.sharing import views as people

urlpatterns = [
    path("reservations/<int:pk>/share/", people.share, name="share"),
    path("reservations/<int:pk>/offer/", people.offer, name="offer"),
    path("reservations/<int:pk>/give-back/", people.give_back, name="give-back"),
    path(
        "reservations/<int:pk>/unshare/<int:user_pk>/", people.unshare, name="unshare"
    ),
    path("offers/", people.offer_list, name="offers"),
    path("offers/<int:pk>/accept/", people.accept, name="offer-accept"),
    path("offers/<int:pk>/decline/", people.decline, name="offer-decline"),
    path("ical/<str:address>.ics", feed_views.feed, name="feed"),
    path("me/calendar/", feed_views.feed_make, name="feed-make"),
    path("me/calendar/revoke/", feed_views.feed_revoke, name="feed-revoke"),
]
