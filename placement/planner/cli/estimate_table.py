"""An estimate as a table for the terminal."""

from collections.abc import Mapping
from typing import Any

from telemetry.protocol.units import format_bytes

ROWS = (
    ("parameters", "param_bytes"),
    ("gradients", "grad_bytes"),
    ("optimizer state", "opt_state_bytes"),
    ("activations kept for backward", "activation_bytes"),
)
PHASES = {"fwd": "forward", "bwd": "backward", "opt": "optimizer", "zero": "zero_grad"}


def estimate_table(title: str, answer: Mapping[str, Any]) -> str:
    """Return the answer of ``estimate`` as lines of at most 80 columns."""
    how = "followed" if answer["method"] == "symbolic" else "closed form"
    lines = [f"{title}, {how}, {answer['seconds']:.3f} s of processor time", ""]
    lines += [_line(label, answer[key]) for label, key in ROWS]
    lines.append("")
    lines += [
        _line(f"peak in {PHASES.get(phase, phase)}", size)
        for phase, size in answer["phase_peak_bytes"].items()
    ]
    lines += ["", _line("tensors at the peak", answer["peak_bytes"])]
    if answer["high_bytes"] > answer["peak_bytes"]:
        lines += [
            _line("the card must have, at least", answer["low_bytes"]),
            _line("nvidia-smi will likely show", answer["likely_bytes"]),
            _line("and rarely more than", answer["high_bytes"]),
        ]
    lines += [f"note: {note}" for note in answer.get("notes", ())]
    return "\n".join(lines)


def _line(label: str, size_bytes: int) -> str:
    return f"  {label:<32}{format_bytes(size_bytes):>12}{size_bytes:>22,} B"
