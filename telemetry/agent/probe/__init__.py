"""NVML to Samples. Nothing outside this room imports pynvml."""

from telemetry.agent.probe.nvml import NvmlProbe

__all__ = ["NvmlProbe"]
