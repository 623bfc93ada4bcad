"""Serving ONNX models: the Job's own server, and the node's way from the web to it.

No Django here: this runs beside a Job, or is the Job.
"""
