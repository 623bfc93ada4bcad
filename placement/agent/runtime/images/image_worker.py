"""One process of recipe ``fine-tune-images``: a classifier on a folder of images.

    python -m torch.distributed.run ...
    -m placement.agent.runtime.images.image_worker '{...}' [PLAN]

The classes are the folders of the data set. If the model has another number of classes,
it gets a new last layer, whose first weights the seed decides. Images are prepared as
the model's own image processor says, without augmentation. Prints the lines of
``placement.agent.runtime.plan_worker`` with items instead of tokens, and of each
evaluation ``eval_loss`` and ``eval_accuracy``. All else is as in
``placement.agent.runtime.fine_tune_worker``.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import Dataset, Subset

from placement.agent.runtime.fine_tune_worker import (
    LOCAL,
    FineTuneTrainer,
    dtype_of,
    import_transformers,
    prepared,
    without_plan,
)
from placement.agent.runtime.images.image_folder import opened_image, read_image_folder
from placement.agent.runtime.own_worker import run
from placement.agent.runtime.rank_groups import RankGroups
from placement.agent.runtime.token_blocks import divided
from placement.agent.runtime.trainer import Trainer
from placement.planner.launch.execution import (
    Execution,
    NotRunnable,
    execution_of_images,
    not_cut,
)
from placement.planner.values.errors import LaunchInvalid
from placement.planner.values.plan import Plan


class PreparedImages(Dataset[tuple[torch.Tensor, int]]):
    """Pairs of an image as the model reads it, and the number of its class."""

    def __init__(self, images: Sequence[tuple[Path, int]], processor: Any) -> None:
        """Take the files with their classes, and the model's image processor."""
        self.images, self.processor = images, processor

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        path, label = self.images[number]
        made = self.processor(opened_image(path), return_tensors="pt")
        return made["pixel_values"][0], label


def loaded_classifier(
    folder: Path, how: Execution, classes: Sequence[str], seed: int
) -> nn.Module:
    """Return the image classifier of a folder, with these classes.

    Raises:
        LaunchInvalid: it is no classifier that transformers knows, or weights other
            than those of its last layers are missing.
        NotRunnable: the family cannot do what the Plan says.
    """
    transformers = import_transformers()
    torch.manual_seed(seed)
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **LOCAL)
        known = getattr(config, "id2label", None) or {}
        names = [known[number] for number in sorted(known)]
        if sorted(names) != sorted(classes):
            names = list(classes)
        model, info = transformers.AutoModelForImageClassification.from_pretrained(
            folder,
            use_safetensors=True,
            dtype=dtype_of(how),
            id2label=dict(enumerate(names)),
            label2id={name: number for number, name in enumerate(names)},
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **LOCAL,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        why = " ".join(str(error).split())[:400]
        raise LaunchInvalid(
            {"model": f"transformers cannot load {folder}: {why}"}
        ) from error
    body = f"{model.base_model_prefix}."
    lost = {*info["missing_keys"], *(one[0] for one in info["mismatched_keys"])}
    if missing := sorted(name for name in lost if name.startswith(body)):
        raise LaunchInvalid({"model": f"{folder} lacks weights: {missing[:5]}"})
    if how.shares_out and any(isinstance(m, _BatchNorm) for m in model.modules()):
        raise not_cut(
            f"the family {model.config.model_type} has batch norms, whose running "
            "means each rank of FSDP would have differently"
        )
    return prepared(model, how)


class ImageTrainer(FineTuneTrainer):
    """A rank of a training of an image classifier."""

    def __init__(
        self, how: Execution, settings: Mapping[str, Any], ranks: RankGroups
    ) -> None:
        """Load the model and the data. Raises as `FineTuneTrainer`."""
        self.images = read_image_folder(Path(settings["data"]))
        self.loader_workers = int(settings["readers"])
        super().__init__(how, settings, ranks)

    def first_model(self) -> nn.Module:
        """Return the classifier, the same on every rank."""
        made: Any = loaded_classifier(
            self.folder, self.how, self.images.classes, self.settings["seed"]
        )
        self.config = made.config
        return made  # type: ignore[no-any-return]

    def _loss_function(self, settings: Mapping[str, Any]) -> Callable[..., Any]:
        return cross_entropy

    def _data_set(self) -> Dataset[Any]:
        """Return the images to train on."""
        settings, images = self.settings, self.images
        self.preprocessor = import_transformers().AutoImageProcessor.from_pretrained(
            self.folder, backend="pil", **LOCAL
        )
        numbers = self.config.label2id
        place = [numbers[name] for name in images.classes]

        def prepared_images(rows: Sequence[tuple[Path, int]]) -> PreparedImages:
            known = [(path, place[label]) for path, label in rows]
            return PreparedImages(known, self.preprocessor)

        every = prepared_images(images.train)
        if images.held_out:
            held = prepared_images(images.held_out)
            rest = Subset(every, range(len(every)))
            self.held_out = Subset(held, range(len(held)))
        else:
            rest, self.held_out = divided(
                every, settings["evaluation_pct"], settings["seed"]
            )
        wanted = self.batch_size * self.how.replicas
        if len(rest) < wanted:
            raise LaunchInvalid(
                {
                    "data": f"{settings['data']} has {len(rest)} images to train on. "
                    f"One step needs {wanted}"
                }
            )
        self._check_size(every)
        return rest

    def _check_size(self, images: PreparedImages) -> None:
        """Refuse images that the model does not read. Raises LaunchInvalid."""
        try:
            sides = tuple(images[0][0].shape[1:])
        except OSError as error:
            raise LaunchInvalid({"data": str(error)[:300]}) from error
        size = getattr(self.config, "image_size", None)
        if isinstance(size, int) and sides != (size, size):
            raise LaunchInvalid(
                {
                    "model": f"its image processor makes images of {sides[0]} x "
                    f"{sides[1]} pixels, and the model reads {size} x {size}"
                }
            )

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next images of this copy, and their classes.

        Raises:
            LaunchInvalid: a file is no image.
        """
        try:
            return super().batch()
        except OSError as error:
            # A reading process adds its traceback before the words.
            last = str(error).strip().splitlines()[-1].removeprefix("OSError: ")
            raise LaunchInvalid({"data": last[:300]}) from error

    def _output(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.autocast is None and not self.how.shares_out:
            inputs = inputs.to(dtype_of(self.how))
        logits: torch.Tensor = self.model(inputs).logits
        return logits

    def evaluated(
        self, inputs: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, int]:
        """Return the mean loss of held-out images, and how many are recognized."""
        dtype = self.autocast
        with torch.autocast(inputs.device.type, dtype, enabled=dtype is not None):
            output = self._output(inputs)
        right = int((output.argmax(-1) == targets).sum())
        return cross_entropy(output.float(), targets), right

    def results(self, loss: float, right: float) -> dict[str, float]:
        """Return what an evaluation prints."""
        return {"eval_loss": round(loss, 6), "eval_accuracy": round(right, 6)}


def main(argv: list[str]) -> int:
    """Train with the settings in argv[1], by the Plan in argv[2] where there is one."""
    settings = json.loads(argv[1])

    def execution(plan: Plan) -> Execution:
        try:
            return execution_of_images(plan)
        except NotRunnable as error:
            raise not_cut(str(error)) from error

    def trainer(how: Execution, ranks: RankGroups) -> Trainer:
        if len(argv) == 2:
            how = without_plan(how, ranks.device, settings)
        return ImageTrainer(how, settings, ranks)

    return run(argv, settings["model"], execution, trainer)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
