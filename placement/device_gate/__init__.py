"""Tell nodes whose device gate is on what each reservation grants, and hear back.

See docs/design/security.md#device-gate. The node's side is ``placement/agent/gate/``.
"""
