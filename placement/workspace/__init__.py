"""Workspaces: JupyterLab on the GPUs of a reservation, on an origin of its own."""
