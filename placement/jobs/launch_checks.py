"""Check the fields of a Job to launch."""

from collections.abc import Mapping, Sequence
from typing import Any

from placement.jobs.plan_files import files_for_job
from placement.models import Job, StoredPlan
from placement.planner.launch.backends import FIELD, backend_problem
from placement.planner.launch.execution import (
    NotRunnable,
    execution_of,
    execution_of_images,
    execution_of_own,
    execution_of_pretrained,
    why_not,
)
from placement.planner.launch.recipes import (
    BY_TORCHRUN,
    FINE_TUNE_IMAGES,
    OF_LANGUAGE_MODELS,
    OWN_MODEL,
    SERVE,
    SERVE_TEXT,
    WORKSPACE,
    checked_settings,
    runs_by_plan,
)
from placement.planner.values.errors import LaunchInvalid, PlanInvalid, SpecInvalid
from placement.planner.values.plan import Plan
from placement.protocol.job_parts import gpus_by_node
from placement.protocol.launchers import (
    MOST_FILES_BYTES,
    Launcher,
    beside_problem,
    environment_problem,
    sent_requirements,
    why_not_on_nodes,
)
from placement.rules.rebalance_policy import RestartMode
from telemetry.models import Node
from telemetry.protocol.sentences import sentence

MOST_RETRIES = 5
MOST_SCRIPT_BYTES = 256 * 1024
MOST_ARGUMENTS = 64
MOST_ARGUMENT_CHARACTERS = 1024


def checked_form(
    name: str,
    kind: str,
    recipe: str,
    recipe_settings: Mapping[str, object],
    script: str,
    arguments: Sequence[str],
    restart: str,
    launcher: str = "",
    environment_folder: str = "",
    files: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the fields of the row. Raises LaunchInvalid with every invalid one."""
    problems: dict[str, str] = {}
    name = name.strip()
    if not 1 <= len(name) <= 120 or not name.isprintable():
        problems["name"] = sentence("must be 1 to 120 printable characters")
    if restart not in list(RestartMode):
        ways = ", ".join(repr(way.value) for way in RestartMode)
        problems["restart"] = sentence("must be one of {ways}", ways=ways)
    checked: dict[str, Any] = {"name": name, "kind": kind, "restart": restart}
    if kind == Job.Kind.RECIPE:
        if recipe == SERVE.name:
            problems["recipe"] = sentence("models are served from /serve/")
        if recipe == SERVE_TEXT.name:
            problems["recipe"] = sentence(
                "language models are served from /serve/text/"
            )
        if recipe == WORKSPACE.name:
            problems["recipe"] = sentence(
                "a workspace is opened from the page of a reservation"
            )
        if script:
            problems["script"] = sentence("a ready recipe takes no script")
        if files:
            problems["files"] = sentence("a ready recipe takes no files")
        if launcher:
            problems["launcher"] = sentence("a ready recipe takes no launcher")
        if environment_folder:
            problems["environment_folder"] = sentence("a ready recipe takes none")
        try:
            settings_given = checked_settings(recipe, recipe_settings)
            checked |= {"recipe": recipe, "recipe_settings": settings_given}
        except LaunchInvalid as error:
            problems |= error.fields
    elif kind == Job.Kind.SCRIPT:
        problems |= _script_problems(script, arguments)
        if launcher not in list(Launcher):
            ways = ", ".join(repr(way.value) for way in Launcher)
            problems["launcher"] = sentence("must be one of {ways}", ways=ways)
        sent = sent_requirements(environment_folder)
        if why := environment_problem(environment_folder, beside=True):
            problems["environment_folder"] = why
        elif sent and sent not in (files or {}):
            problems["environment_folder"] = sentence(
                "{path} is not sent with the script", path=sent
            )
        if why := beside_problem(files or {}):
            problems["files"] = why
        checked |= {"script": script, "arguments": list(arguments)}
        checked |= {"started_with": launcher, "environment_folder": environment_folder}
    else:
        there = (Job.Kind.RECIPE.value, Job.Kind.SCRIPT.value)
        problems["kind"] = sentence("must be one of {there}", there=", ".join(there))
    if problems:
        raise LaunchInvalid(problems)
    return checked


def _script_problems(script: str, arguments: Sequence[str]) -> dict[str, str]:
    problems: dict[str, str] = {}
    if not script.strip():
        problems["script"] = sentence("is empty")
    elif len(script.encode()) > MOST_SCRIPT_BYTES or "\0" in script:
        problems["script"] = sentence(
            "must be text of at most {most_script} KiB; put larger programs into "
            "your own folder and call them from here",
            most_script=MOST_SCRIPT_BYTES // 1024,
        )
    if len(arguments) > MOST_ARGUMENTS or not all(
        isinstance(word, str)
        and len(word) <= MOST_ARGUMENT_CHARACTERS
        and "\0" not in word
        for word in arguments
    ):
        problems["arguments"] = sentence(
            "must be at most {most_arguments} words of at most "
            "{most_argument_characters} characters",
            most_arguments=MOST_ARGUMENTS,
            most_argument_characters=MOST_ARGUMENT_CHARACTERS,
        )
    return problems


def retry_problems(retries: int, retry_failed: bool) -> dict[str, str]:
    """Return the faults in the restarts that a Job may have, by field."""
    if not 0 <= retries <= MOST_RETRIES:
        return {
            "retries": sentence(
                "must be 0 to {most_retries}", most_retries=MOST_RETRIES
            )
        }
    if retry_failed and not retries:
        return {"retry_failed": sentence("needs at least one restart")}
    return {}


def check_backend(
    settings: Mapping[str, Any], plan: StoredPlan | None, where: Node
) -> None:
    """Refuse a recipe's backend that its Plan or its nodes do not allow.

    Raises:
        LaunchInvalid: at the setting, with the reason.
    """
    by_plan = plan.plan if plan is not None and runs_by_plan(plan.plan) else None
    names = {shard["node"] for shard in by_plan["shards"]} if by_plan else {where.name}
    extras = dict(Node.objects.filter(name__in=names).values_list("name", "extras"))
    if why := backend_problem(settings, by_plan, extras):
        raise LaunchInvalid({FIELD: why})


def recipe_problem(
    recipe: str,
    settings: Mapping[str, Any],
    plan: Mapping[str, Any],
    spec: Mapping[str, Any],
) -> str:
    """Return why a recipe cannot follow a Plan; "": it can.

    Args:
        recipe: its name.
        settings: checked settings of the recipe.
        plan: the Plan (as JSON).
        spec: the Plan's ModelSpec (as JSON).
    """
    if (why := why_not(plan)) or recipe not in BY_TORCHRUN:
        return why
    try:
        read = Plan.from_json(plan)
        if recipe == OWN_MODEL.name:
            execution_of_own(read, settings["backend"])
        elif recipe == FINE_TUNE_IMAGES.name:
            execution_of_images(read, spec)
        elif recipe in OF_LANGUAGE_MODELS:
            execution_of_pretrained(read, settings, spec)
        else:
            execution_of(read, settings)
    except (NotRunnable, PlanInvalid) as error:
        return str(error)
    return ""


def check_plan_of_script(plan: StoredPlan, launcher: str) -> None:
    """Refuse a Plan whose files cannot be in the folder, or not be launched there.

    Raises:
        LaunchInvalid: with the reason.
    """
    try:
        size = len(files_for_job(plan))
    except (PlanInvalid, SpecInvalid) as error:
        raise LaunchInvalid(
            {"plan": sentence("cannot be read any more: {error}", error=error)}
        ) from error
    if size > MOST_FILES_BYTES:
        raise LaunchInvalid(
            {"plan": sentence("its files are over 1 MiB: the limit for a node")}
        )
    counts = [len(uuids) for _, uuids in gpus_by_node(plan.plan)]
    why = why_not_on_nodes(Launcher(launcher), counts)
    if why:
        raise LaunchInvalid({"launcher": why})
