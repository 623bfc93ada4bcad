"""What can go wrong in placement, as data.

PlacementError
├── BadInput               the person can mend it: fields, each with its problem
│   ├── SpecInvalid        a model's description
│   │   └── UnknownFamily  a config.json of a family that is not known here
│   ├── WorkloadInvalid    what to run with it
│   └── OffersInvalid      the Gpus offered
└── PlanInvalid            a Plan that breaks its own promises: never the person's fault

Every error has a stable `code`; its text is made from its fields.
"""

from collections.abc import Mapping, Sequence


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
                "model_type": f"'{family[:80]}' is not a known family. Known: "
                f"{', '.join(known)}. A .safetensors or ONNX file of the model works "
                "for any family."
            }
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
