"""The errors of placement.

CodedError
├── BadInput               the person can correct it: fields, each with its problem
│   ├── SpecInvalid        a model's description
│   │   └── UnknownFamily  a config.json of a family that is not known here
│   │       └── UnknownHead  or of a known one in an unknown form
│   ├── FileRefused        a file, in the words of the process that reads it
│   ├── WorkloadInvalid    what to run with it
│   ├── OffersInvalid      the GPUs offered
│   └── LaunchInvalid      a job's form
└── PlanInvalid            a plan that breaks its own promises: never the person's fault

Refusals of the rules are in ``placement/rules/job_refusals.py``, those of nodes in
``placement/protocol/node_refusals.py``.
"""

from collections.abc import Sequence
from datetime import UTC, tzinfo

from telemetry.protocol.coded_error import CodedError, FieldsRefused
from telemetry.protocol.sentences import sentence


class BadInput(FieldsRefused):
    """An invalid input of placement, with each field and its problem."""

    code = "bad-input"

    def text(self, zone: tzinfo = UTC) -> str:
        """Return every invalid field with its problem."""
        return "; ".join(f"{field}: {detail}" for field, detail in self.fields.items())


class SpecInvalid(BadInput):
    """A model's description has missing, invalid or absurd fields."""

    code = "spec-invalid"
    title = sentence("The model cannot be read")


class UnknownFamily(SpecInvalid):
    """The config.json is of a family whose layers are not known here."""

    code = "unknown-family"
    title = sentence("The model is not known here")

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


class FileRefused(BadInput):
    """A file or a model's code cannot be read, as its process reports.

    `code` is the code of another error here, or one of those that docs/errors.md lists
    as FileRefused.
    """

    def __init__(self, code: str, field: str, detail: str) -> None:
        super().__init__({field: detail})
        self.code = code


class WorkloadInvalid(BadInput):
    """The workload is contradictory or out of range."""

    code = "workload-invalid"


class OffersInvalid(BadInput):
    """The offered GPUs contradict themselves (bytes below zero, one GPU twice)."""

    code = "offers-invalid"
    title = sentence("The GPUs are not valid")


class PlanInvalid(CodedError):
    """A plan breaks its own promises: a layer twice, a GPU over its memory."""

    code = "plan-invalid"

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class LaunchInvalid(BadInput):
    """A job's form has invalid fields."""

    code = "launch-invalid"
    title = sentence("The job cannot be launched")
