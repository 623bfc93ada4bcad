"""One process of recipe ``pre-train``: a model of a config.json, from random weights.

    python -m torch.distributed.run ... -m placement.agent.runtime.pre_train_worker
    '{...}' [PLAN]

The folder of setting ``model`` has config.json and the tokenizer. Its weights, if there
are any, are not read. All else is as in ``placement.agent.runtime.fine_tune_worker``.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from placement.agent.runtime.fine_tune_worker import (
    LOCAL,
    FineTuneTrainer,
    dtype_of,
    import_transformers,
    prepared,
    without_plan,
)
from placement.agent.runtime.own_worker import run
from placement.agent.runtime.rank_groups import RankGroups
from placement.agent.runtime.trainer import Trainer
from placement.planner.launch.execution import Execution, execution_on_node
from placement.planner.values.errors import LaunchInvalid
from placement.planner.values.plan import Plan


def random_model(folder: Path, how: Execution, seed: int) -> nn.Module:
    """Return the language model of a config.json. The seed decides its weights.

    Raises:
        LaunchInvalid: it is no language model that transformers knows.
        NotRunnable: the Plan recomputes activations, which this family does not.
    """
    transformers = import_transformers()
    torch.manual_seed(seed)
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **LOCAL)
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype_of(how), trust_remote_code=False
        )
    except (
        *(OSError, ValueError, KeyError, TypeError, AttributeError),
        *(RuntimeError, ImportError, ZeroDivisionError),
    ) as error:
        why = " ".join(str(error).split())[:400]
        raise LaunchInvalid(
            {"model": f"transformers cannot make the model of {folder}: {why}"}
        ) from error
    return prepared(model, how)


class PreTrainer(FineTuneTrainer):
    """A rank of a training that begins with random weights."""

    def first_model(self) -> nn.Module:
        """Return the model with random weights, the same on every rank."""
        return random_model(self.folder, self.how, self.settings["seed"])


def main(argv: list[str]) -> int:
    """Train with the settings in argv[1], by the Plan in argv[2] where there is one."""
    settings: Mapping[str, Any] = json.loads(argv[1])

    def execution(plan: Plan) -> Execution:
        return execution_on_node(plan, settings)

    def trainer(how: Execution, ranks: RankGroups) -> Trainer:
        if len(argv) == 2:
            how = without_plan(how, ranks.device, settings)
        return PreTrainer(how, settings, ranks)

    return run(argv, settings["model"], execution, trainer)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
