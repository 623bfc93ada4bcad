"""The device gate: only the holder of a GPU can open its device file.

``bpf_instructions.py`` encodes BPF instructions, and ``device_program.py`` writes the
program of the gate with them. ``cgroup_gate.py`` attaches it to a control group.
See docs/design/security.md#device-gate.
"""
