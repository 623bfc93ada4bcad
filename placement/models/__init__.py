"""What the second floor keeps."""

from placement.models.jobs import (
    Job,
    JobEvent,
    JobQuerySet,
    MoveDecision,
    PlacementPolicy,
    Refinement,
    RegisteredModel,
    StoredPlan,
    StoredPlanQuerySet,
)
from placement.models.serving import Endpoint, ModelFile, ServedModel

__all__ = [
    "Endpoint",
    "Job",
    "JobEvent",
    "JobQuerySet",
    "ModelFile",
    "MoveDecision",
    "PlacementPolicy",
    "Refinement",
    "RegisteredModel",
    "ServedModel",
    "StoredPlan",
    "StoredPlanQuerySet",
]
