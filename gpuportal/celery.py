"""The control side's Celery application: ticks, rules, roll-ups."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuportal.settings")

app = Celery("gpuportal")
# In every thread: without it only this one would send tasks to the right broker.
app.set_default()
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["telemetry", "reservations", "placement"])
