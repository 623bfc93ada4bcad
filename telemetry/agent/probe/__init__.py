"""From NVML to readings. No other package imports pynvml."""

from telemetry.agent.probe.nvml import NvmlProbe

__all__ = ["NvmlProbe"]
