"""One process of recipe ``tiny-transformer``, started by torchrun.

    python -m torch.distributed.run ... -m placement.runtime.stage_worker '{...}'

Trains data-parallel: DDP over NCCL where there is CUDA, over gloo on the CPU.
Rank 0 prints ``step=… loss=… tokens_per_s=…``, the mean of all ranks. SIGTERM:
the ranks agree on the step at which to stop (otherwise one would wait forever
in an all-reduce), rank 0 saves ``checkpoint.pt``, and all end with 0.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from placement.runtime.tiny import MarkovText, TinyTransformer

CHECKPOINT = "checkpoint.pt"
PRINT_EVERY_SECONDS = 0.5


class Asked:
    """Whether SIGTERM has come."""

    def __init__(self) -> None:
        self.to_stop = False
        signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, *_: object) -> None:
        self.to_stop = True


class Training:
    """The model, its text and its optimizer on one rank."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.rank = int(os.environ["RANK"])
        self.ranks = int(os.environ["WORLD_SIZE"])
        cuda = torch.cuda.is_available()
        self.device = torch.device(
            f"cuda:{os.environ['LOCAL_RANK']}" if cuda else "cpu"
        )
        if cuda:
            torch.cuda.set_device(self.device)
        else:
            torch.set_num_threads(1)
        distributed.init_process_group("nccl" if cuda else "gloo")
        torch.manual_seed(settings["seed"])
        plain = TinyTransformer(
            layers=settings["layers"],
            hidden=settings["hidden"],
            heads=settings["heads"],
            seq=settings["seq"],
        ).to(self.device)
        self.plain = plain
        self.model: nn.Module = (
            DistributedDataParallel(plain) if self.ranks > 1 else plain
        )
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=settings["learning_rate"]
        )
        self.text = MarkovText(seed=settings["seed"], rank=self.rank)

    def step(self) -> float:
        """Take one optimizer step; return this rank's loss."""
        tokens = self.text.batch(self.settings["batch"], self.settings["seq"])
        tokens = tokens.to(self.device)
        logits = self.model(tokens[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def agree(self, loss: float, *, stop: bool) -> tuple[float, bool]:
        """Return the mean loss, and whether any rank was asked to stop."""
        both = torch.tensor([loss, float(stop)], device=self.device)
        distributed.all_reduce(both)
        return float(both[0]) / self.ranks, bool(both[1] > 0)

    def save(self, step: int) -> None:
        """Write the checkpoint whole, from rank 0."""
        if self.rank:
            return
        draft = Path(CHECKPOINT + ".part")
        torch.save(
            {
                "step": step,
                "settings": self.settings,
                "model": self.plain.state_dict(),
                "optimizer": self.optimizer.state_dict(),
            },
            draft,
        )
        draft.replace(CHECKPOINT)
        print(f"checkpoint of step {step} saved to {CHECKPOINT}", flush=True)


def train(training: Training, asked: Asked) -> None:
    """Train until the last step or until TERM."""
    settings, rank = training.settings, training.rank
    tokens_a_step = settings["batch"] * settings["seq"] * training.ranks
    printed_at, printed_step = time.monotonic(), 0
    last = settings["steps"] - 1
    for step in range(settings["steps"]):
        began = time.monotonic()
        loss, stop = training.agree(training.step(), stop=asked.to_stop)
        now = time.monotonic()
        due = step == 0 or now - printed_at >= PRINT_EVERY_SECONDS
        if rank == 0 and (due or stop or step == last):
            rate = (
                (step - printed_step or 1) * tokens_a_step / max(now - printed_at, 1e-9)
            )
            print(f"step={step} loss={loss:.4f} tokens_per_s={rate:.0f}", flush=True)
            printed_at, printed_step = now, step
        if stop:
            if rank == 0:
                print("asked to stop", flush=True)
            break
        while time.monotonic() - began < settings["seconds_per_step"]:
            if asked.to_stop:
                break
            time.sleep(0.05)
    training.save(step)


def main(argv: list[str]) -> int:
    """Train with the settings in argv[1]."""
    asked = Asked()
    training = Training(json.loads(argv[1]))
    if training.rank == 0:
        count = sum(p.numel() for p in training.plain.parameters())
        print(
            f"tiny-transformer: {count} parameters, {training.ranks} process(es) on "
            f"{training.device.type}",
            flush=True,
        )
    try:
        train(training, asked)
    finally:
        distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
