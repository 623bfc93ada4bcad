"""Addresses of the operator's pages for machines, closed time and policies."""

from django.urls import path

from reservations.operations import (
    closure_views,
    machine_views,
    policy_views,
    pool_views,
)

urlpatterns = [
    path("manage/pools/", pool_views.pool_list, name="manage-pools"),
    path("manage/pools/new/", pool_views.new, name="manage-pool-new"),
    path("manage/pools/<int:pk>/", pool_views.pool_page, name="manage-pool"),
    path(
        "manage/pools/<int:pk>/undo/<int:entry>/",
        pool_views.undo,
        name="manage-pool-undo",
    ),
    path("manage/pools/<int:pk>/quota/", pool_views.quota, name="manage-pool-quota"),
    path("manage/gpus/", machine_views.gpus, name="manage-gpus"),
    path("manage/gpus/act/", machine_views.act, name="manage-gpus-act"),
    path("manage/gpus/replace/", machine_views.replace, name="manage-replace-gpu"),
    path("manage/nodes/<int:pk>/drain/", machine_views.drain, name="manage-drain"),
    path("manage/nodes/<int:pk>/gate/", machine_views.gate, name="manage-gate"),
    path("manage/closures/", closure_views.closure_list, name="manage-closures"),
    path("manage/closures/new/", closure_views.closure_form, name="manage-closure-new"),
    path(
        "manage/closures/<int:pk>/", closure_views.closure_form, name="manage-closure"
    ),
    path("manage/closures/<int:pk>/end/", closure_views.end, name="manage-closure-end"),
    path("manage/policy/", policy_views.home, name="manage-policy"),
    path(
        "manage/policy/<slug:which>/",
        policy_views.policy_page,
        name="manage-policy-one",
    ),
    path(
        "manage/policy/<slug:which>/undo/<int:pk>/",
        policy_views.undo,
        name="manage-policy-undo",
    ),
]
