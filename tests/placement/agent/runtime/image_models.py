"""A tiny ViT and a folder of images for the tests of recipe ``fine-tune-images``.

    python -m tests.placement.agent.runtime.image_models make FOLDER
    python -m tests.placement.agent.runtime.image_models load FOLDER IMAGES

``make`` writes the folders ``vit`` and ``images``. ``load`` prints, of a trained model,
its classes, and loss and accuracy that transformers itself computes on the images in
validation.
"""

import json
import sys
from pathlib import Path

import numpy
import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

CLASSES = ("blue", "green", "red")
SIDE = 16


def make(folder: Path) -> None:
    torch.manual_seed(5)
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=SIDE,
        patch_size=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=2,
    )
    ViTForImageClassification(config).save_pretrained(folder / "vit")
    (folder / "vit" / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "image_processor_type": "ViTImageProcessor",
                "size": {"height": SIDE, "width": SIDE},
                "image_mean": [0.5] * 3,
                "image_std": [0.5] * 3,
                "resample": 2,
                "do_resize": True,
                "do_rescale": True,
                "do_normalize": True,
            }
        )
    )
    draw = numpy.random.default_rng(7)
    for part, count in (("train", 9), ("validation", 2)):
        for number, name in enumerate(CLASSES):
            place = folder / "images" / part / name
            place.mkdir(parents=True)
            for image in range(count):
                pixels = draw.integers(0, 90, (20, 24, 3))
                pixels[:, :, 2 - number] += 160
                made = Image.fromarray(pixels.astype("uint8"))
                made.save(place / f"{image}.png")


def load(folder: Path, images: Path) -> None:
    model = AutoModelForImageClassification.from_pretrained(folder).eval()
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    losses, right = [], 0
    for path in sorted(images.glob("validation/*/*.png")):
        label = model.config.label2id[path.parent.name]
        inputs = processor(Image.open(path), return_tensors="pt")
        with torch.no_grad():
            found = model(**inputs, labels=torch.tensor([label]))
        losses.append(float(found.loss))
        right += int(found.logits.argmax()) == label
    names = [model.config.id2label[number] for number in range(len(CLASSES))]
    count = len(losses)
    told = {"loss": sum(losses) / count, "accuracy": right / count, "classes": names}
    print(json.dumps(told))


if __name__ == "__main__":
    {"make": make, "load": load}[sys.argv[1]](*map(Path, sys.argv[2:]))
