"""Addresses of the operator's pages for machines, closed time and policies."""

from django.urls import path

from reservations.views import closing, machines, policies, pool_pages

urlpatterns = [
    path("manage/pools/", pool_pages.listed, name="manage-pools"),
    path("manage/pools/new/", pool_pages.new, name="manage-pool-new"),
    path("manage/pools/<int:pk>/", pool_pages.one, name="manage-pool"),
    path("manage/pools/<int:pk>/quota/", pool_pages.quota, name="manage-pool-quota"),
    path("manage/gpus/", machines.gpus, name="manage-gpus"),
    path("manage/gpus/act/", machines.act, name="manage-gpus-act"),
    path("manage/gpus/replace/", machines.replace, name="manage-replace-gpu"),
    path("manage/nodes/<int:pk>/drain/", machines.drain, name="manage-drain"),
    path("manage/closures/", closing.listed, name="manage-closures"),
    path("manage/closures/new/", closing.one, name="manage-closure-new"),
    path("manage/closures/<int:pk>/", closing.one, name="manage-closure"),
    path("manage/closures/<int:pk>/end/", closing.end, name="manage-closure-end"),
    path("manage/policy/", policies.home, name="manage-policy"),
    path("manage/policy/<slug:which>/", policies.one, name="manage-policy-one"),
    path(
        "manage/policy/<slug:which>/undo/<int:pk>/",
        policies.undo,
        name="manage-policy-undo",
    ),
]
