"""A Slurm cluster as the board shows it: its nodes, GPUs, jobs and reservations.

`slurm_commands.py` asks Slurm, `slurm_records.py` reads the answers, `cluster_view.py`
joins them to one state for each GPU, and `service.py` stores it. Nothing here changes
Slurm.
"""
