"""Workspaces: JupyterLab on the GPUs of a reservation, each on a separate origin."""
