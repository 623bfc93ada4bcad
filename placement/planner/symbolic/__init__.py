"""One training step on tensors without memory: what every storage takes, and when.

The closed form (``placement.planner.memory.estimate``) counts by formula. This package
runs the model's own code, forward, backward, optimizer and zero_grad, on phantoms: CPU
tensors whose storages have sizes but no memory. No kernel runs; a tracker follows each
storage from its birth to its end. See docs/design/placement.md#symbolic.

| module           | what                                                        |
| ---------------- | ----------------------------------------------------------- |
| case             | a spec object, checked field by field                       |
| child_process    | the child: start, limits, progress, cancel                  |
| child            | ``python -m placement.planner.symbolic.child``              |
| phantom          | tensors without memory                                      |
| storage_tracker  | live bytes and peaks by phase                               |
| dispatch_mode    | answers every operator without running it                   |
| shapes           | what an operator would return                               |
| operator_routing | operators whose answer depends on values: a balanced answer |
| gradient_sum     | autograd's own additions, in place as without a mode        |
| workspaces       | what kernels take beyond their results                      |
| kernels          | what CUDA does otherwise: attention, dropout, autocast      |
| networks         | plain torch models                                          |
| case_module      | a case as a module, its batch and its loss                  |
| adapters         | low-rank adapters and frozen parameters                     |
| optimizers       | the optimizers, 8-bit Adam among them                       |
| training_step    | the training step, and the answer                           |

Only ``case`` and ``child_process`` may be imported outside the child: the rest
imports torch.
"""
