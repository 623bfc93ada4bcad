"""The address of a model in a user's code: `module:callable`.

Calling it runs the user's code, so it happens only inside a Job's sandbox, or when an
operator starts it (`python -m placement.planner.sandbox.entry_build`). The web process
only checks the form of the address.
"""

import re
from dataclasses import dataclass

from placement.planner.values.errors import SpecInvalid
from telemetry.protocol.sentences import sentence

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
MAX_LENGTH = 200


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """The address of a callable that takes no arguments and returns a torch module."""

    module: str
    callable: str

    @classmethod
    def read(cls, text: str) -> "EntryPoint":
        """Parse `package.module:name` or `module:Class.method`. Raises SpecInvalid."""
        module, colon, name = text.partition(":")
        if (
            not colon
            or len(text) > MAX_LENGTH
            or not _NAME.match(module)
            or not _NAME.match(name)
        ):
            raise SpecInvalid(
                {
                    "entry": sentence(
                        "must read module:callable, such as nets.small:make"
                    )
                }
            )
        return cls(module, name)

    def __str__(self) -> str:
        return f"{self.module}:{self.callable}"
