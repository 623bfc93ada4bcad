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
from placement.models.serving import Admits, Endpoint, ModelFile, ServedModel

__all__ = [
    "Admits",
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
