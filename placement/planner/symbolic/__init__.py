"""One training step on tensors without memory: the size and lifetime of every storage.

The closed form (``placement.planner.memory.estimate``) counts by formula. This package
runs the model's own code, forward, backward, optimizer and zero_grad, on phantoms: CPU
tensors whose storages have sizes but no memory. No kernel runs. A tracker follows each
storage from its creation to its end. See docs/design/placement.md#symbolic.

| module           | content                                                     |
| ---------------- | ----------------------------------------------------------- |
| case             | a spec object, checked field by field                       |
| child_process    | the child: start, limits, progress, cancel                  |
| child            | ``python -m placement.planner.symbolic.child``              |
| phantom          | tensors without memory                                      |
| storage_tracker  | live bytes and peaks by phase                               |
| dispatch_mode    | the result of every operator without running it             |
| shapes           | the layout of an operator's result                          |
| operator_routing | operators whose result depends on values: a balanced result |
| gradient_sum     | autograd's own additions, in place as without a mode        |
| workspaces       | memory of kernels beyond their results                      |
| kernels          | differences of CUDA: attention, dropout, autocast           |
| networks         | plain torch models                                          |
| case_module      | a case as a module, its batch and its loss                  |
| adapters         | low-rank adapters and frozen parameters                     |
| optimizers       | the optimizers, 8-bit Adam among them                       |
| training_step    | the training step, and the answer                           |

Only ``case`` and ``child_process`` may be imported outside the child, because the
others import torch.
"""
