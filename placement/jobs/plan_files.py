"""The launch files of a Plan for the folder of its Job."""

import json

from placement.models import StoredPlan
from placement.planner.launch.files import launch_files
from placement.planner.model.spec import ModelSpec
from placement.planner.values.plan import Plan
from placement.protocol.launchers import FILES


def files_for_job(plan: StoredPlan) -> bytes:
    """Return the launch files of a script's Job as JSON: texts by name.

    The same Plan gives the same bytes, because their hash is in the signed order.

    Raises:
        PlanInvalid, SpecInvalid: it is stored in a form that is no longer read.
    """
    made = launch_files(Plan.from_json(plan.plan), ModelSpec.from_json(plan.spec))
    texts = {file.name: file.text for file in made.files if file.name in FILES}
    return json.dumps(texts, sort_keys=True).encode()
