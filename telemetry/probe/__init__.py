"""NVML to Samples. `calls.py` in this room is the only file that imports pynvml."""

from telemetry.probe.nvml import NvmlProbe

__all__ = ["NvmlProbe"]
