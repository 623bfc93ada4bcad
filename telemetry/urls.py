"""Addresses of telemetry's pages."""

from django.urls import path

from telemetry.inventory import views

urlpatterns = [
    path("gpus/<int:pk>/", views.gpu_show, name="gpu"),
    path("nodes/<slug:name>/", views.node_show, name="node"),
    path("nodes/<slug:name>/history/", views.node_history, name="node-history"),
]
