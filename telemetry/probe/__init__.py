"""NVML to Samples. Nothing outside this room imports pynvml."""

from telemetry.probe.nvml import NvmlProbe

__all__ = ["NvmlProbe"]
