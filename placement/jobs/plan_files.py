"""The launch files of a Plan, as the folder of its Job holds them."""

import json

from placement.models import StoredPlan
from placement.planner.launch.files import launch_files
from placement.planner.model.spec import ModelSpec
from placement.planner.values.plan import Plan
from placement.protocol.launchers import FILES


def files_for_job(plan: StoredPlan) -> bytes:
    """Return what lies in the folder of a script's Job: texts by name, as JSON.

    The same Plan gives the same bytes: their sum stands in the signed order.

    Raises:
        PlanInvalid, SpecInvalid: it was kept in a form that is not read any more.
    """
    made = launch_files(Plan.from_json(plan.plan), ModelSpec.from_json(plan.spec))
    texts = {file.name: file.text for file in made.files if file.name in FILES}
    return json.dumps(texts, sort_keys=True).encode()
