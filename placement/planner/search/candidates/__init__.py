"""One module per family of strategies: whether it fits, the needed changes, its speed.

``search_context`` has the shared parts of one search: needs, costs, the construction of
Plans. ``data_parallel`` has ranks that each run the whole model (one Gpu, DDP, ZeRO,
FSDP), ``uneven_zero`` ZeRO-1 divided by free memory, ``pipeline`` and
``other_schedules`` pipelines, ``tensor_parallel`` layers divided over fast links,
``hybrid`` all of them together. Each returns Plans or a Refusal.
"""
