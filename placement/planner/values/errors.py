"""What can go wrong in placement, as data.

PlacementError
├── BadInput               the person can mend it: fields, each with its problem
│   ├── SpecInvalid        a model's description
│   │   └── UnknownFamily  a config.json of a family that is not known here
│   │       └── UnknownHead  or of a known one in an unknown form
│   ├── WorkloadInvalid    what to run with it
│   ├── OffersInvalid      the Gpus offered
│   └── LaunchInvalid      a Job's form
├── PlanInvalid            a Plan that breaks its own promises: never the person's fault
├── OrderRefused           a node does not do what an order says (code, detail)
├── FactRefused            a node's message about Jobs that is none
└── LogConflict, LogTooLarge   a piece of log that cannot be appended

Every error has a stable `code`; its text is made from its fields. Refusals of the
rules are in `job_refusals.py`.
"""

from collections.abc import Mapping, Sequence

from telemetry.protocol.sentences import sentence


class PlacementError(Exception):
    """Root of everything that placement raises on purpose."""

    code = "placement_error"


class BadInput(PlacementError):
    """Something given to placement cannot be used; says which field and why."""

    code = "bad_input"

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems: dict[str, str] = dict(problems)
        super().__init__(
            "; ".join(f"{field}: {detail}" for field, detail in self.problems.items())
        )

    @property
    def field(self) -> str:
        """The first field with a problem."""
        return next(iter(self.problems), "")

    @property
    def detail(self) -> str:
        """What is wrong with the first field."""
        return next(iter(self.problems.values()), "")


class SpecInvalid(BadInput):
    """A model's description has missing, wrong or absurd fields."""

    code = "spec_invalid"


class UnknownFamily(SpecInvalid):
    """The config.json is of a family whose layers are not known here."""

    code = "unknown_family"

    def __init__(self, family: str, known: Sequence[str]) -> None:
        self.family = family
        self.known = tuple(known)
        super().__init__(
            {
                "model_type": sentence(
                    "'{family}' is not a known family. Known: {known}. A "
                    ".safetensors or ONNX file of the model works for any family.",
                    family=family[:80],
                    known=", ".join(known),
                )
            }
        )


class UnknownHead(UnknownFamily):
    """A known family in a form whose layers are not known here."""

    def __init__(self, family: str, form: str) -> None:
        self.family = family
        self.known = ()
        SpecInvalid.__init__(
            self,
            {
                "architectures": sentence(
                    "{family} {form} is not known here",
                    family=family[:40],
                    form=form[:120],
                )
            },
        )


class WorkloadInvalid(BadInput):
    """What to run is contradictory or out of range."""

    code = "workload_invalid"


class OffersInvalid(BadInput):
    """The Gpus offered contradict themselves (bytes below zero, the same one twice)."""

    code = "offers_invalid"


class PlanInvalid(PlacementError):
    """A Plan breaks a promise: a layer twice, a Gpu over its memory."""

    code = "plan_invalid"

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class OrderRefused(PlacementError):
    """A node does not do what an order says.

    `code`: malformed, signature, other_node, expired, clock, replayed, no_key,
    isolation, unix_user, recipe, script or simulated.
    """

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        self.detail = detail
        super().__init__(detail)


class LaunchInvalid(BadInput):
    """A Job's form has fields that cannot be used."""

    code = "launch_invalid"


class LogConflict(PlacementError):
    """A piece of a log does not start where the stored part ends."""

    code = "log_conflict"

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        super().__init__(sentence("the log has {size} bytes", size=size_bytes))


class LogTooLarge(PlacementError):
    """The stored log would grow over its ceiling."""

    code = "log_too_large"


class FactRefused(PlacementError):
    """A node's message about Jobs is not what it must be."""

    code = "fact_refused"

    def __init__(self, field: str, why: str) -> None:
        self.field = field
        self.why = why
        super().__init__(f"{field}: {why}")
