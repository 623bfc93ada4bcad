"""Addresses of telemetry's pages."""

from django.urls import path

from telemetry import views

urlpatterns = [
    path("gpus/<int:pk>/", views.gpu_show, name="gpu"),
]
