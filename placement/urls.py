"""Addresses of Jobs, Plans, and the nodes' channel."""

from django.urls import path

from placement import channel
from placement.views import jobs, plan

urlpatterns = [
    path("plan/", plan.plan_show, name="plan"),
    path("plan/choose/", plan.plan_choose, name="plan-choose"),
    path("jobs/", jobs.job_list, name="jobs"),
    path("jobs/new/", jobs.job_new, name="job-new"),
    path("jobs/<int:pk>/", jobs.job_show, name="job"),
    path("jobs/<int:pk>/state", jobs.job_state, name="job-state"),
    path("jobs/<int:pk>/log", jobs.job_log, name="job-log"),
    path("jobs/<int:pk>/log.txt", jobs.job_log_download, name="job-log-download"),
    path("jobs/<int:pk>/numbers", jobs.job_numbers, name="job-numbers"),
    path("node/v1/jobs/<int:pk>/script", channel.script, name="node-script"),
    path("node/v1/jobs/<int:pk>/log", channel.log, name="node-log"),
]
