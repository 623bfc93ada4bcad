"""One training step on tensors without memory: what every storage takes, and when.

The closed form (``placement.planner.memory.estimate``) counts by formula. This package
runs the model's own code, forward, backward, optimizer and zero_grad, on phantoms: CPU
tensors whose storages have sizes but no memory. No kernel runs; a tracker follows each
storage from its birth to its end. See docs/design/placement.md#symbolic.

| file         | what                                                           |
| ------------ | -------------------------------------------------------------- |
| case.py      | a spec object, checked field by field                          |
| child_process.py   | the child: start, limits, progress, cancel                     |
| child.py     | ``python -m placement.planner.symbolic.child``
|
| phantom.py   | tensors without memory                                         |
| storage_tracker.py   | live bytes and peaks by phase
|
| dispatch_mode.py      | answers every operator without running it
|
| shapes.py    | what an operator would return                                  |
| routing.py   | operators whose answer depends on values: a balanced substitute |
| gradient_sum.py   | autograd's own additions, in place as without a mode           |
| workspaces.py | what kernels take beyond their results                        |
| kernels.py   | what CUDA does otherwise: attention, dropout, autocast         |
| networks.py  | plain torch models                                             |
| models.py    | a case as a module, its batch and its loss                     |
| adapters.py  | low-rank adapters and frozen parameters                        |
| optimizers.py | the optimizers, 8-bit Adam among them                          |
| training_step.py      | the training step, and the answer
|

Only case.py and child_process.py may be imported outside the child: the rest
imports torch.
"""
