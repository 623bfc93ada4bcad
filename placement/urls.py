"""Addresses of Jobs, Plans, and the nodes' channel."""

from django.urls import path

from placement import channel, channel_checkpoints, channel_results
from placement.views import (
    job_list,
    jobs,
    kept,
    launch,
    measured,
    plan,
    results,
    runs,
    serve,
)

urlpatterns = [
    path("plan/", plan.plan_show, name="plan"),
    path("plan/now/", plan.plan_now, name="plan-now"),
    path("plan/choose/", plan.plan_choose, name="plan-choose"),
    path("plan/kept/", kept.kept_list, name="plan-list"),
    path("plan/compare/", kept.kept_compare, name="plan-compare"),
    path("plan/<int:pk>/", kept.kept_show, name="plan-kept"),
    path("plan/<int:pk>/share/", kept.kept_share, name="plan-share"),
    path("plan/<int:pk>/book/", kept.kept_book, name="plan-book"),
    path("plan/<int:pk>/files.zip", kept.kept_zip, name="plan-zip"),
    path("plan/<int:pk>/files/<str:name>", kept.kept_file, name="plan-file"),
    path("jobs/", job_list.job_list, name="jobs"),
    path("jobs/compare/", runs.job_compare, name="job-compare"),
    path("jobs/new/", launch.job_new, name="job-new"),
    path("jobs/arrays/<int:pk>/stop", job_list.array_stop, name="array-stop"),
    path("jobs/gaps/<int:pk>/stop", job_list.gap_stop, name="gap-stop"),
    path("jobs/<int:pk>/", jobs.job_show, name="job"),
    path("jobs/<int:pk>/state", jobs.job_state, name="job-state"),
    path("jobs/<int:pk>/log", jobs.job_log, name="job-log"),
    path("jobs/<int:pk>/log.txt", jobs.job_log_download, name="job-log-download"),
    path("jobs/<int:pk>/numbers", jobs.job_numbers, name="job-numbers"),
    path("jobs/<int:pk>/gpus", jobs.job_gpus, name="job-gpus"),
    path("jobs/<int:pk>/files", jobs.job_files, name="job-files"),
    path("jobs/<int:pk>/measured", jobs.job_measured, name="job-measured-part"),
    path("jobs/<int:pk>/files/<int:file_id>", results.job_file, name="job-file"),
    path("jobs/measured/", measured.measured_show, name="job-measured"),
    path("serve/", serve.serve_list, name="serves"),
    path("serve/new/", serve.serve_new, name="serve-new"),
    path("serve/<int:pk>/", serve.serve_show, name="serve"),
    path("node/v1/hello", channel.hello, name="node-hello"),
    path(
        "serve/<int:pk>/models/<int:model>/request.json",
        serve.serve_request,
        name="serve-request",
    ),
    path("node/v1/jobs/<int:pk>/script", channel.script, name="node-script"),
    path("node/v1/jobs/<int:pk>/files", channel.files, name="node-files"),
    path("node/v1/jobs/<int:pk>/log", channel.log, name="node-log"),
    path(
        "node/v1/jobs/<int:pk>/checkpoint",
        channel_checkpoints.piece,
        name="node-checkpoint-piece",
    ),
    path(
        "node/v1/jobs/<int:pk>/checkpoint/<int:part>",
        channel_checkpoints.checkpoint,
        name="node-checkpoint",
    ),
    path(
        "node/v1/jobs/<int:pk>/checkpoint/about",
        channel_checkpoints.about,
        name="node-checkpoint-about",
    ),
    path(
        "node/v1/jobs/<int:pk>/results",
        channel_results.job_results,
        name="node-results",
    ),
    path(
        "node/v1/jobs/<int:pk>/results/<int:file_id>",
        channel_results.job_result,
        name="node-result",
    ),
    path("node/v1/jobs/<int:pk>/models", channel.models, name="node-models"),
    path(
        "node/v1/jobs/<int:pk>/models/<int:model_id>",
        channel.model,
        name="node-model",
    ),
]
