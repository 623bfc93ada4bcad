"""All addresses of the site."""

from django.contrib import admin
from django.urls import include, path, re_path
from django.views.generic import RedirectView

from gpuportal.alerts import views as alert_views
from gpuportal.alerts.bell import bell
from gpuportal.api import api
from gpuportal.api_reference import api_reference
from gpuportal.board import wall_views
from gpuportal.board.free_hours import free_hours
from gpuportal.directory import views as directory
from gpuportal.http.language_model_door import admit_call
from gpuportal.http.serve_door import admit
from gpuportal.manage import audit_views, people_views
from gpuportal.manage import views as manage_home
from gpuportal.monitoring.health import healthz, readyz
from gpuportal.monitoring.metrics import metrics
from gpuportal.node_join import join_channel
from gpuportal.node_join import views as node_join
from gpuportal.oidc import views as oidc
from gpuportal.openid_provider import client_views
from gpuportal.openid_provider import views as openid
from gpuportal.pages import views
from gpuportal.pages.help_pages import help_page, help_terms
from gpuportal.pages.mine import my_reservations_page
from gpuportal.pages.reservation_page import reservation
from gpuportal.pages.status_page import status_page
from gpuportal.saml import views as saml

urlpatterns = [
    # First, because addresses are tried in order and programs wait for these answers.
    path("api/v1/docs", api_reference, name="api-reference"),
    path("api/v1/", api.urls),
    path("", views.board, name="board"),
    path("board/minute", views.board_minute, name="board-minute"),
    path("board/energy", views.board_energy, name="board-energy"),
    path("free/", free_hours, name="free-hours"),
    path("mine/", my_reservations_page, name="mine"),
    path("reservations/<int:pk>/", reservation, name="reservation"),
    path("help/", help_page, name="help"),
    path("status/", status_page, name="status"),
    path("help/terms.json", help_terms, name="help-terms"),
    path("search", views.search, name="search"),
    path("bell", bell, name="bell"),
    path("alerts/", alert_views.alert_list, name="alerts"),
    path("alerts/adopt/", alert_views.adopt, name="alerts-adopt"),
    path("alerts/<int:pk>/", alert_views.alert_act, name="alert-act"),
    path("gpus/<int:pk>/xids/clear/", alert_views.xids_clear, name="xids-clear"),
    path("manage/", manage_home.home, name="manage"),
    path("wall/<str:token>/", wall_views.wall, name="wall"),
    path("manage/walls/", wall_views.links, name="manage-walls"),
    path("manage/machines/add/", node_join.machine_add, name="manage-machine-add"),
    path(
        "manage/machines/<int:pk>/", node_join.machine_join, name="manage-machine-join"
    ),
    path(
        "manage/machines/<int:pk>/withdraw/",
        node_join.withdraw,
        name="manage-machine-withdraw",
    ),
    path("manage/services/", client_views.services, name="manage-services"),
    path("manage/services/<int:pk>/", client_views.service_page, name="manage-service"),
    path("manage/audit/", audit_views.audit_log, name="manage-audit"),
    path("manage/people/", people_views.people, name="manage-people"),
    path("manage/people/new/", people_views.person_new, name="manage-person-new"),
    path("manage/people/<int:pk>/", people_views.person, name="manage-person"),
    path(
        "manage/people/<int:pk>/erase/", people_views.person_erase, name="person-erase"
    ),
    path("me/", views.me, name="me"),
    path("me/zone/", views.time_zone, name="time-zone"),
    path("language/", views.language, name="language"),
    path("me/tour/", views.tour_seen, name="tour-seen"),
    path("me/tokens/", views.token_create, name="token-create"),
    path("me/ssh-keys/", views.ssh_key_add, name="ssh-key-add"),
    path("me/ssh-keys/<int:pk>/remove/", views.ssh_key_remove, name="ssh-key-remove"),
    path("me/tokens/<int:pk>/revoke/", views.token_revoke, name="token-revoke"),
    path("me/services/end/", openid.consent_end, name="openid-consent-end"),
    path(
        ".well-known/openid-configuration",
        openid.configuration,
        name="openid-configuration",
    ),
    path("openid/keys", openid.keys, name="openid-keys"),
    path("openid/authorize", openid.authorize, name="openid-authorize"),
    path("openid/token", openid.token, name="openid-token"),
    path("openid/userinfo", openid.userinfo, name="openid-userinfo"),
    path("openid/revoke", openid.revoke, name="openid-revoke"),
    path("login/", views.SignIn.as_view(), name="login"),
    # Before the OpenID providers, whose keys are other ones.
    path("login/saml/", saml.start, name="saml-start"),
    path("login/saml/back/", saml.back, name="saml-back"),
    path("login/saml/end/", saml.end, name="saml-end"),
    path("login/saml/logout/", saml.logout, name="saml-logout"),
    path("login/saml/metadata/", saml.metadata, name="saml-metadata"),
    path("login/<slug:key>/", oidc.start, name="oidc-start"),
    path("login/<slug:key>/back/", oidc.back, name="oidc-back"),
    path("login/<slug:key>/end/", oidc.end, name="oidc-end"),
    path("me/directory/connect/", directory.connect, name="directory-connect"),
    path("me/logins/saml/connect/", saml.connect, name="saml-connect"),
    path("me/logins/saml/finish/", saml.finish, name="saml-finish"),
    path("me/logins/<slug:key>/connect/", oidc.connect, name="oidc-connect"),
    path("logout/", views.SignOut.as_view(), name="logout"),
    path("join.sh", join_channel.join_script, name="join-script"),
    path("join/v1/greeting", join_channel.greeting, name="join-greeting"),
    path("join/v1/code/<str:sha256>.tar.gz", join_channel.code, name="join-code"),
    path("join/v1/node", join_channel.node, name="join-node"),
    path("node/v1/doctor", join_channel.doctor, name="node-doctor"),
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("metrics", metrics, name="metrics"),
    path("serve/<int:pk>/stats", admit, {"rest": "stats"}, name="serve-stats"),
    re_path(
        r"^serve/(?P<pk>[1-9][0-9]{0,17})/(?P<rest>v2(?:/.*)?)$", admit, name="serve-v2"
    ),
    re_path(
        r"^serve/(?P<pk>[1-9][0-9]{0,17})/(?P<rest>v1(?:/.*)?)$",
        admit_call,
        name="serve-v1",
    ),
    path("", include("telemetry.urls")),
    path("", include("reservations.urls")),
    path("", include("placement.urls")),
    # One page changes passwords, with limits and the audit log.
    path(
        "admin/password_change/", RedirectView.as_view(pattern_name="password-change")
    ),
    path("admin/login/", views.admin_sign_in, name="admin-sign-in"),
    path("admin/", admin.site.urls),
]

handler403 = "gpuportal.pages.views.not_allowed"
handler404 = "gpuportal.pages.views.not_found"
handler500 = "gpuportal.pages.views.failed"
