"""One module per family of strategies: does it fit, what must change, how fast is it?

``search_context`` has what one search shares: needs, costs, the construction of Plans.
``data_parallel`` has ranks that each run the whole model (one Gpu, DDP, ZeRO, FSDP),
``uneven_zero`` ZeRO-1 divided by free memory, ``pipeline`` and ``other_schedules``
pipelines, ``tensor_parallel`` layers divided over fast links, ``hybrid`` all of them
together. Each returns Plans or a Refusal.
"""
