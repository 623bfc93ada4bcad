"""One module per family of strategies: does it fit, what must change, how fast is it?

`hunt` holds what one search shares (needs, costs, the making of Plans); `whole` are
ranks that each run the whole model (one Gpu, DDP, ZeRO, FSDP), `uneven` ZeRO-1 cut by
room, `staged` pipelines, `schedules` their other schedules, `tensor` layers cut over
fast links, `hybrid` all of them together. Each answers Plans or a Refusal.
"""
