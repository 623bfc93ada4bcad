"""The tables of placement: models, plans, jobs, endpoints, moves."""

from placement.models.backfill import Backfill, BackfillQuerySet
from placement.models.jobs import (
    USES_GPUS,
    Job,
    JobArray,
    JobEvent,
    JobQuerySet,
    LogDropped,
    ScriptFolder,
)
from placement.models.language_model_endpoints import (
    LanguageModelEndpoint,
    LanguageModelEndpointQuerySet,
)
from placement.models.moves import MoveDecision, PlacementPolicy
from placement.models.outcomes import PlanOutcome
from placement.models.parts import CarriedCheckpoint, JobPart
from placement.models.plans import (
    Refinement,
    RegisteredModel,
    StoredPlan,
    StoredPlanQuerySet,
)
from placement.models.results import ResultFile
from placement.models.serving import Admits, Endpoint, ModelFile, ServedModel
from placement.models.waiting_launches import WaitingLaunch
from placement.models.workspace import Workspace, WorkspaceEntry

__all__ = [
    "USES_GPUS",
    "Admits",
    "Backfill",
    "BackfillQuerySet",
    "CarriedCheckpoint",
    "Endpoint",
    "Job",
    "JobArray",
    "JobEvent",
    "JobPart",
    "JobQuerySet",
    "LanguageModelEndpoint",
    "LanguageModelEndpointQuerySet",
    "LogDropped",
    "ModelFile",
    "MoveDecision",
    "PlacementPolicy",
    "PlanOutcome",
    "Refinement",
    "RegisteredModel",
    "ResultFile",
    "ScriptFolder",
    "ServedModel",
    "StoredPlan",
    "StoredPlanQuerySet",
    "WaitingLaunch",
    "Workspace",
    "WorkspaceEntry",
]
