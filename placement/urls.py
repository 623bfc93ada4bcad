"""Addresses of Jobs, Plans, and the nodes' channel."""

from django.urls import path

from placement.access import ssh_channel
from placement.job_pages import job_list, job_page, launch_page
from placement.jobs.nodes import (
    checkpoint_channel,
    node_channel,
    results_channel,
    token_channel,
)
from placement.jobs.views import result_downloads, run_charts
from placement.language_models import views as language_models
from placement.plans.views import (
    measured_error_page,
    plan_choice,
    plan_page,
    saved_plan_page,
)
from placement.serving import served_models_channel
from placement.serving import views as serve
from placement.workspace import terminal_page
from placement.workspace import views as workspace

urlpatterns = [
    path("plan/", plan_page.plan_show, name="plan"),
    path("plan/now/", plan_page.plan_now, name="plan-now"),
    path("plan/choose/", plan_choice.plan_choose, name="plan-choose"),
    path("plan/kept/", saved_plan_page.saved_plan_list, name="plan-list"),
    path("plan/compare/", saved_plan_page.saved_plan_compare, name="plan-compare"),
    path("plan/<int:pk>/", saved_plan_page.saved_plan_show, name="plan-kept"),
    path("plan/<int:pk>/share/", saved_plan_page.saved_plan_share, name="plan-share"),
    path("plan/<int:pk>/book/", saved_plan_page.saved_plan_book, name="plan-book"),
    path("plan/<int:pk>/files.zip", saved_plan_page.saved_plan_zip, name="plan-zip"),
    path(
        "plan/<int:pk>/files/<str:name>",
        saved_plan_page.saved_plan_file,
        name="plan-file",
    ),
    path("jobs/", job_list.job_list, name="jobs"),
    path("jobs/compare/", run_charts.job_compare, name="job-compare"),
    path("jobs/new/", launch_page.job_new, name="job-new"),
    path("jobs/arrays/<int:pk>/stop", job_list.array_stop, name="array-stop"),
    path("jobs/gaps/<int:pk>/stop", job_list.gap_stop, name="gap-stop"),
    path("jobs/<int:pk>/", job_page.job_show, name="job"),
    path("jobs/<int:pk>/state", job_page.job_state, name="job-state"),
    path("jobs/<int:pk>/log", job_page.job_log, name="job-log"),
    path("jobs/<int:pk>/log.txt", job_page.job_log_download, name="job-log-download"),
    path("jobs/<int:pk>/numbers", job_page.job_numbers, name="job-numbers"),
    path("jobs/<int:pk>/gpus", job_page.job_gpus, name="job-gpus"),
    path("jobs/<int:pk>/files", job_page.job_files, name="job-files"),
    path("jobs/<int:pk>/measured", job_page.job_measured, name="job-measured-part"),
    path(
        "jobs/<int:pk>/files/<int:file_id>", result_downloads.job_file, name="job-file"
    ),
    path(
        "reservations/<int:pk>/workspaces/",
        workspace.reservation_workspaces,
        name="workspaces",
    ),
    path(
        "reservations/<int:pk>/terminal/",
        terminal_page.reservation_terminal,
        name="terminal",
    ),
    path(
        "reservations/<int:pk>/terminal/stop/",
        terminal_page.stop_terminal,
        name="terminal-stop",
    ),
    path("workspaces/book/", workspace.book_and_open, name="workspace-book"),
    path("workspaces/<int:pk>/enter/", workspace.enter, name="workspace-enter"),
    path("workspaces/<int:pk>/stop/", workspace.stop, name="workspace-stop"),
    path("workspaces/<int:pk>/share/", workspace.share, name="workspace-share"),
    path("jobs/measured/", measured_error_page.measured_show, name="job-measured"),
    path("serve/", serve.serve_list, name="serves"),
    path("serve/new/", serve.serve_new, name="serve-new"),
    path("serve/<int:pk>/", serve.serve_show, name="serve"),
    path("serve/text/", language_models.language_model_list, name="language-models"),
    path(
        "serve/text/new/", language_models.language_model_new, name="language-model-new"
    ),
    path(
        "serve/text/<int:pk>/",
        language_models.language_model_show,
        name="language-model",
    ),
    path("node/v1/hello", node_channel.hello, name="node-hello"),
    path("node/v1/challenge", token_channel.challenge, name="node-challenge"),
    path("node/v1/token", token_channel.token, name="node-token"),
    path(
        "serve/<int:pk>/models/<int:model>/request.json",
        serve.serve_request,
        name="serve-request",
    ),
    path("node/v1/ssh", ssh_channel.ssh_access, name="node-ssh"),
    path("node/v1/jobs/<int:pk>/script", node_channel.script, name="node-script"),
    path("node/v1/jobs/<int:pk>/files", node_channel.files, name="node-files"),
    path("node/v1/jobs/<int:pk>/beside", node_channel.beside, name="node-beside"),
    path("node/v1/jobs/<int:pk>/log", node_channel.log, name="node-log"),
    path(
        "node/v1/jobs/<int:pk>/checkpoint",
        checkpoint_channel.piece,
        name="node-checkpoint-piece",
    ),
    path(
        "node/v1/jobs/<int:pk>/checkpoint/<int:part>",
        checkpoint_channel.checkpoint,
        name="node-checkpoint",
    ),
    path(
        "node/v1/jobs/<int:pk>/checkpoint/about",
        checkpoint_channel.announce_checkpoint,
        name="node-checkpoint-about",
    ),
    path(
        "node/v1/jobs/<int:pk>/results",
        results_channel.job_results,
        name="node-results",
    ),
    path(
        "node/v1/jobs/<int:pk>/results/<int:file_id>",
        results_channel.job_result,
        name="node-result",
    ),
    path(
        "node/v1/jobs/<int:pk>/models", served_models_channel.models, name="node-models"
    ),
    path(
        "node/v1/jobs/<int:pk>/models/<int:model_id>",
        served_models_channel.model,
        name="node-model",
    ),
]
