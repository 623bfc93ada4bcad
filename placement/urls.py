"""Addresses of Jobs, Plans, and the nodes' channel."""

from django.urls import path

from placement import channel
from placement.views import job_list, jobs, launch, plan

urlpatterns = [
    path("plan/", plan.plan_show, name="plan"),
    path("plan/choose/", plan.plan_choose, name="plan-choose"),
    path("jobs/", job_list.job_list, name="jobs"),
    path("jobs/new/", launch.job_new, name="job-new"),
    path("jobs/<int:pk>/", jobs.job_show, name="job"),
    path("jobs/<int:pk>/state", jobs.job_state, name="job-state"),
    path("jobs/<int:pk>/log", jobs.job_log, name="job-log"),
    path("jobs/<int:pk>/log.txt", jobs.job_log_download, name="job-log-download"),
    path("jobs/<int:pk>/numbers", jobs.job_numbers, name="job-numbers"),
    path("jobs/<int:pk>/gpus", jobs.job_gpus, name="job-gpus"),
    path("node/v1/jobs/<int:pk>/script", channel.script, name="node-script"),
    path("node/v1/jobs/<int:pk>/log", channel.log, name="node-log"),
]
