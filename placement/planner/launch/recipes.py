"""The ready recipes: their settings, the meaning of each, and their commands.

A recipe is code of the portal, so it may run where Jobs are not isolated. For that
reason both the web and the node check every setting here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from placement.planner.launch.backends import (
    BACKENDS,
    FIELD,
    NEEDS_PLAN,
    TORCH,
    why_not_deepspeed,
)
from placement.planner.launch.execution import RUNNABLE_STRATEGIES, why_not
from placement.planner.launch.language_model_servers import AUTO, DTYPES, TEXT_SERVERS
from placement.planner.launch.quantized_bases import (
    AS_PLANNED,
    NEEDS_ADAPTERS,
    QUANTIZED,
    WEIGHT_FORMS,
    WEIGHTS_FIELD,
    planned_form,
)
from placement.planner.launch.workspace_apps import (
    JUPYTER_LAB,
    TERMINAL,
    WORKSPACE_APPS,
)
from placement.planner.values.entry_point import EntryPoint
from placement.planner.values.errors import LaunchInvalid, SpecInvalid
from placement.planner.values.strategies import SINGLE, STRATEGIES
from placement.planner.values.workload import MAX_BATCH, MAX_SEQUENCE
from telemetry.protocol.sentences import sentence

GIB = 2**30
PLAN_FILE = "plan.json"
"""Name of the Plan's file in the Job's folder."""
DATA_SUFFIXES = (".txt", ".jsonl", ".parquet")
"""Forms of the data set that recipe ``fine-tune`` reads."""
SCHEDULES = ("cosine", "linear", "constant")
"""Courses of the learning rate after the warmup."""
LORA_OUTPUTS = ("adapters", "merged")
"""Forms of a model that was trained with adapters."""
_LAYER_NAMES = re.compile(r"all-linear|(?:[A-Za-z_][\w.]*(?: [A-Za-z_][\w.]*)*)?", re.A)
_JOB_FOLDER = re.compile(r"(?:\d{1,18}-\d{1,9}-[0-9a-f]{1,32})?", re.ASCII)
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_HUB_NAME = re.compile(
    r"[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII
)
WITHOUT_PLAN = tuple(one.key for one in STRATEGIES.values() if one.keeps_state_whole)
"""Strategies that recipe ``tiny-transformer`` runs without a Plan."""


UNITS = {"gib": "GiB", "pct": "%"}
FULL_NAMES = {
    "seq": sentence("sequence length"),
    "simulated_util_pct": sentence("simulated utilization"),
    "simulated_memory_gib": sentence("Simulated memory"),
    "learning_rate": sentence("Learning rate"),
    "seconds_per_step": sentence("Seconds per step"),
    "checkpoint_seconds": sentence("Checkpoint seconds"),
    "lines_per_second": sentence("Lines per second"),
    "exit_code": sentence("Exit code"),
    "room_bytes": sentence("GPU memory, bytes"),
    "layers": sentence("Layers"),
    "steps": sentence("Steps"),
    "seconds": sentence("Seconds"),
    "strategy": sentence("Strategy"),
    "model": sentence("Model"),
    "data": sentence("Data"),
    "folder": sentence("Folder"),
    "column": sentence("Column"),
    "output": sentence("Output folder"),
    "epochs": sentence("Epochs"),
    "evaluation_pct": sentence("Part for evaluation"),
    "evaluation_steps": sentence("Steps between evaluations"),
    "learning_rate_schedule": sentence("Learning rate schedule"),
    "warmup_pct": sentence("Warmup"),
    "clip_norm": sentence("Largest norm of the gradients"),
    "lora_rank": sentence("LoRA rank"),
    "lora_alpha": sentence("LoRA alpha"),
    "lora_dropout": sentence("LoRA dropout"),
    "lora_targets": sentence("LoRA layers"),
    "lora_output": sentence("LoRA output"),
    "readers": sentence("Reading processes"),
    "weights": sentence("Frozen weights"),
}
"""Names of settings in forms, if they differ from the settings' names."""


@dataclass(frozen=True)
class RecipeSetting:
    """One number or word of a recipe."""

    name: str
    kind: type
    default: int | float | str
    least: float = 0
    most: float = 0
    choices: tuple[str, ...] = ()
    """The allowed words. Without any, the value is read according to `reads`."""
    help: str = ""
    reads: str = ""
    """Kind of free text: `entry` (module:callable), `folder` (absolute, or empty),
    `home` (folder, absolute or in the home), `model` (absolute folder, or a name in
    the cache), `own-model` (such a model, or empty), `dataset` (absolute file),
    `images` (absolute folder), `export` (a model, or module:callable),
    `column` (of a data set), `layers` (names of linear layers), `job` (the folder of
    a job on the node, or empty) or `name` (of a served model).
    """

    @property
    def is_required(self) -> bool:
        """Return whether its default is no valid value."""
        files = ("model", "dataset", "images", "export")
        return self.reads in files and not self.default

    @property
    def label(self) -> str:
        """Return its name in forms, with its unit.

        >>> RecipeSetting("learning_rate", float, 1.0).label
        'Learning rate'
        >>> RecipeSetting("simulated_memory_gib", float, 1.0).label
        'Simulated memory, GiB'
        """
        words, _, unit = self.name.rpartition("_")
        plain = FULL_NAMES.get(self.name, (words if unit in UNITS else self.name))
        plain = plain.replace("_", " ")
        plain = plain[:1].upper() + plain[1:]
        return f"{plain}, {UNITS[unit]}" if unit in UNITS else plain


@dataclass(frozen=True)
class Recipe:
    """One ready recipe."""

    name: str
    title: str
    about: str
    settings: tuple[RecipeSetting, ...]
    packages: tuple[str, ...] = ()
    """Modules that the node's environment must have."""
    needs_isolation: bool = False
    """It imports code or reads files that its owner names, so it may run only where
    scripts may run.
    """


_SIMULATED = (
    RecipeSetting(
        "simulated_memory_gib",
        float,
        8.0,
        least=0.5,
        most=2048,
        help=sentence("memory used on each simulated GPU (real GPUs are measured)"),
    ),
    RecipeSetting(
        "simulated_util_pct",
        float,
        85.0,
        least=0,
        most=100,
        help=sentence("utilization it shows on each simulated GPU"),
    ),
)
_BACKEND = RecipeSetting(
    "backend",
    str,
    TORCH,
    choices=BACKENDS,
    help=sentence(
        "library that distributes the training; deepspeed must be installed on the node"
    ),
)
_OF_ANY_TRAINING = (
    "batch",
    "steps",
    "learning_rate",
    "seed",
    "seconds_per_step",
    "checkpoint_seconds",
    "strategy",
    "backend",
)

TINY_TRANSFORMER = Recipe(
    name="tiny-transformer",
    title=sentence("Tiny transformer"),
    about=(
        sentence(
            "Trains a small language model with PyTorch and torchrun, one process "
            "per GPU. Without CUDA it runs on the CPU."
        )
    ),
    settings=(
        RecipeSetting(
            "layers", int, 2, least=1, most=24, help=sentence("transformer layers")
        ),
        RecipeSetting(
            "hidden", int, 64, least=16, most=2048, help=sentence("width of the model")
        ),
        RecipeSetting(
            "heads", int, 4, least=1, most=32, help=sentence("attention heads")
        ),
        RecipeSetting(
            "seq", int, 64, least=8, most=2048, help=sentence("tokens per sequence")
        ),
        RecipeSetting(
            "batch",
            int,
            8,
            least=1,
            most=1024,
            help=sentence("sequences per process (with a plan: per microbatch)"),
        ),
        RecipeSetting(
            "steps",
            int,
            200,
            least=1,
            most=10_000_000,
            help=sentence("optimizer steps"),
        ),
        RecipeSetting(
            "learning_rate",
            float,
            3e-3,
            least=1e-7,
            most=1,
            help=sentence("learning rate of AdamW"),
        ),
        RecipeSetting(
            "dropout", float, 0.0, least=0, most=0.9, help=sentence("while training")
        ),
        RecipeSetting(
            "seed",
            int,
            0,
            least=0,
            most=2**31 - 1,
            help=sentence("seed for data and weights"),
        ),
        RecipeSetting(
            "seconds_per_step",
            float,
            0.0,
            least=0,
            most=60,
            help=sentence("slow each step down to this time, for demonstrations"),
        ),
        RecipeSetting(
            "checkpoint_seconds",
            float,
            600.0,
            least=0,
            most=86_400,
            help=sentence(
                "time between checkpoints; 0: only at the end and before a stop"
            ),
        ),
        RecipeSetting(
            "strategy",
            str,
            "auto",
            choices=("auto", *RUNNABLE_STRATEGIES),
            help=sentence("auto: ddp on several GPUs; the others need a plan"),
        ),
        _BACKEND,
        *_SIMULATED,
    ),
    packages=("torch",),
)
BURN_IN = Recipe(
    name="burn-in",
    title="Burn-in",
    about=sentence("Counts and prints its progress. Use it to check that jobs run."),
    settings=(
        RecipeSetting(
            "seconds", float, 60.0, least=0, most=7 * 86_400, help=sentence("how long")
        ),
        RecipeSetting(
            "lines_per_second",
            float,
            1.0,
            least=0.01,
            most=1000,
            help=sentence("lines of progress per second"),
        ),
        RecipeSetting(
            "exit_code",
            int,
            0,
            least=0,
            most=255,
            help=sentence("exit code of the job"),
        ),
        *_SIMULATED,
    ),
)
OWN_MODEL = Recipe(
    name="own-model",
    title=sentence("Your own model"),
    about=(
        sentence(
            "Trains your own PyTorch module and data set, unchanged, on one or more "
            "GPUs."
        )
    ),
    settings=(
        RecipeSetting(
            "model",
            str,
            "train:model",
            reads="entry",
            help=sentence("returns a torch module"),
        ),
        RecipeSetting(
            "data",
            str,
            "train:data",
            reads="entry",
            help=sentence("returns a data set of (input, target)"),
        ),
        RecipeSetting(
            "loss",
            str,
            "torch.nn.functional:cross_entropy",
            reads="entry",
            help=sentence("function of (output, target)"),
        ),
        RecipeSetting(
            "folder",
            str,
            "",
            reads="folder",
            help=sentence("folder of your code on the node; empty: your home folder"),
        ),
        *(s for s in TINY_TRANSFORMER.settings if s.name in _OF_ANY_TRAINING),
        *_SIMULATED,
    ),
    packages=("torch",),
    needs_isolation=True,
)
FINE_TUNE = Recipe(
    name="fine-tune",
    title=sentence("Fine-tune a language model"),
    about=(
        sentence(
            "Continues the training of a Hugging Face model on your text, on one or "
            "more GPUs."
        )
    ),
    settings=(
        RecipeSetting(
            "model",
            str,
            "",
            reads="model",
            help=sentence(
                "folder of the model on the node, or its name in the Hugging Face cache"
            ),
        ),
        RecipeSetting(
            "data",
            str,
            "",
            reads="dataset",
            help=sentence("file on the node: .txt, .jsonl or .parquet"),
        ),
        RecipeSetting(
            "column",
            str,
            "text",
            reads="column",
            help=sentence("column of a .jsonl or .parquet file that has the text"),
        ),
        RecipeSetting(
            "output",
            str,
            "",
            reads="folder",
            help=sentence(
                "the trained model is written into its folder model; empty: the "
                "results of the job"
            ),
        ),
        RecipeSetting(
            "seq",
            int,
            512,
            least=8,
            most=MAX_SEQUENCE,
            help=sentence("tokens per sequence"),
        ),
        RecipeSetting(
            "batch",
            int,
            1,
            least=1,
            most=MAX_BATCH,
            help=sentence("sequences per process (with a plan: per microbatch)"),
        ),
        RecipeSetting(
            "epochs",
            float,
            1.0,
            least=0.001,
            most=1000,
            help=sentence("passes over the data"),
        ),
        RecipeSetting(
            "steps",
            int,
            0,
            least=0,
            most=10_000_000,
            help=sentence("optimizer steps; 0: as many as the epochs have"),
        ),
        RecipeSetting(
            "learning_rate",
            float,
            2e-5,
            least=1e-8,
            most=1,
            help=sentence("highest learning rate of AdamW"),
        ),
        RecipeSetting(
            "learning_rate_schedule",
            str,
            SCHEDULES[0],
            choices=SCHEDULES,
            help=sentence("course of the learning rate after the warmup"),
        ),
        RecipeSetting(
            "warmup_pct",
            float,
            3.0,
            least=0,
            most=100,
            help=sentence("part of the steps in which the learning rate rises from 0"),
        ),
        RecipeSetting(
            "clip_norm",
            float,
            1.0,
            least=0,
            most=1e6,
            help=sentence("larger gradients are scaled down to it; 0: never"),
        ),
        RecipeSetting(
            "lora_rank",
            int,
            0,
            least=0,
            most=2**14,
            help=sentence(
                "trains adapters of this rank beside frozen weights; 0: all weights "
                "are trained"
            ),
        ),
        RecipeSetting(
            "lora_targets",
            str,
            "",
            reads="layers",
            help=sentence(
                "linear layers that get adapters, such as q_proj v_proj, or "
                "all-linear; empty: the usual ones of the family"
            ),
        ),
        RecipeSetting(
            "lora_alpha",
            float,
            0.0,
            least=0,
            most=2**16,
            help=sentence("weight of the adapters; 0: twice the rank"),
        ),
        RecipeSetting(
            "lora_dropout",
            float,
            0.0,
            least=0,
            most=0.9,
            help=sentence("of the adapters' inputs"),
        ),
        RecipeSetting(
            "lora_output",
            str,
            LORA_OUTPUTS[0],
            choices=LORA_OUTPUTS,
            help=sentence(
                "adapters: for PEFT, beside the model; merged: a whole model"
            ),
        ),
        RecipeSetting(
            "weights",
            str,
            AS_PLANNED,
            choices=WEIGHT_FORMS,
            help=sentence(
                "nf4 and int8: kept in 4 or 8 bits below the adapters (QLoRA); auto: "
                "as planned, or unchanged"
            ),
        ),
        RecipeSetting(
            "evaluation_pct",
            float,
            5.0,
            least=0,
            most=50,
            help=sentence("sequences held out to measure the loss on; 0: none"),
        ),
        RecipeSetting(
            "evaluation_steps",
            int,
            100,
            least=0,
            most=10_000_000,
            help=sentence("0: only at the end"),
        ),
        *(
            s
            for s in TINY_TRANSFORMER.settings
            if s.name in ("seed", "seconds_per_step", "checkpoint_seconds", "strategy")
        ),
        *_SIMULATED,
    ),
    packages=("torch", "transformers", "safetensors"),
    needs_isolation=True,
)
_OF_PRE_TRAINING: dict[str, dict[str, Any]] = {
    "model": {
        "help": sentence(
            "folder on the node with config.json and tokenizer.json, or the name of "
            "such a model in the Hugging Face cache; its weights are not read"
        )
    },
    "learning_rate": {"default": 3e-4},
    "seed": {"help": sentence("seed for data and first weights")},
}
"""Settings of recipe ``pre-train`` that differ from those of ``fine-tune``."""
PRE_TRAIN = Recipe(
    name="pre-train",
    title=sentence("Pre-train a language model"),
    about=(
        sentence(
            "Trains a model of a Hugging Face config.json from random weights on your "
            "text, on one or more GPUs."
        )
    ),
    settings=tuple(
        replace(setting, **_OF_PRE_TRAINING.get(setting.name, {}))
        for setting in FINE_TUNE.settings
        if not setting.name.startswith("lora_") and setting.name != "weights"
    ),
    packages=FINE_TUNE.packages,
    needs_isolation=True,
)
_OF_IMAGES: dict[str, dict[str, Any]] = {
    "data": {
        "reads": "images",
        "help": sentence(
            "folder on the node with one folder of images per class, or with train "
            "and validation, which have these folders"
        ),
    },
    "batch": {
        "default": 8,
        "help": sentence("images per process (with a plan: per microbatch)"),
    },
    "learning_rate": {"default": 5e-5},
    "evaluation_pct": {
        "default": 10.0,
        "help": sentence(
            "images held out to measure loss and accuracy; not used if there is a "
            "folder validation; 0: none"
        ),
    },
    "seed": {"help": sentence("seed for data and a new last layer")},
}
"""Settings of recipe ``fine-tune-images`` that differ from those of ``fine-tune``."""
_OF_TEXT = ("column", "seq", "weights")
FINE_TUNE_IMAGES = Recipe(
    name="fine-tune-images",
    title=sentence("Fine-tune an image classifier"),
    about=(
        sentence(
            "Trains a Hugging Face image classifier (such as ViT) to tell your classes "
            "of images apart, on one or more GPUs."
        )
    ),
    settings=(
        *(
            replace(setting, **_OF_IMAGES.get(setting.name, {}))
            for setting in FINE_TUNE.settings
            if not setting.name.startswith("lora_")
            and setting.name not in _OF_TEXT
            and setting not in _SIMULATED
        ),
        RecipeSetting(
            "readers",
            int,
            2,
            least=0,
            most=64,
            help=sentence(
                "processes that read images, for each process that trains; 0: it "
                "reads them itself"
            ),
        ),
        *_SIMULATED,
    ),
    packages=FINE_TUNE.packages,
    needs_isolation=True,
)
OF_LANGUAGE_MODELS = (FINE_TUNE.name, PRE_TRAIN.name)
"""Recipes that train the model of a config.json on text."""
OF_PRETRAINED = (*OF_LANGUAGE_MODELS, FINE_TUNE_IMAGES.name)
"""Recipes that train the model of a config.json."""
EXPORT_ONNX = Recipe(
    name="export-onnx",
    title=sentence("Export to ONNX"),
    about=sentence(
        "Writes a Hugging Face model or your own module as one ONNX file, which can be "
        "served."
    ),
    settings=(
        RecipeSetting(
            "model",
            str,
            "",
            reads="export",
            help=sentence(
                "folder of the model on the node, its name in the Hugging Face cache, "
                "or module:callable, which returns a torch module and a tuple of "
                "example inputs"
            ),
        ),
        RecipeSetting(
            "folder",
            str,
            "",
            reads="folder",
            help=sentence("folder of your code on the node; empty: your home folder"),
        ),
        RecipeSetting(
            "seq",
            int,
            512,
            least=8,
            most=MAX_SEQUENCE,
            help=sentence("most tokens of a sequence"),
        ),
        *_SIMULATED,
    ),
    packages=("torch", "transformers"),
    needs_isolation=True,
)
SERVE = Recipe(
    name="serve-onnx",
    title=sentence("Served models"),
    about=sentence("Answers requests for ONNX models within deadlines."),
    settings=(
        RecipeSetting(
            "threads", int, 1, least=1, most=64, help=sentence("if the CPU computes")
        ),
        RecipeSetting(
            "room_bytes",
            int,
            4 * GIB,
            least=2**20,
            most=2**50,
            help=sentence("GPU memory that the loaded models may use together"),
        ),
        *_SIMULATED,
    ),
    packages=("onnxruntime",),
)
"""The recipe of Jobs of kind ``serve``. Nobody chooses it."""
SERVE_TEXT = Recipe(
    name="serve-text",
    title=sentence("Language model"),
    about=sentence("Answers requests for text by an OpenAI-compatible API."),
    settings=(
        RecipeSetting(
            "model",
            str,
            "",
            reads="own-model",
            help=sentence(
                "folder of the model on the node, or its name in the Hugging Face cache"
            ),
        ),
        RecipeSetting(
            "of_job",
            str,
            "",
            reads="job",
            help=sentence("a job on this node whose results have the model"),
        ),
        RecipeSetting(
            "name", str, "model", reads="name", help=sentence("its name in requests")
        ),
        RecipeSetting(
            "server",
            str,
            AUTO,
            choices=(AUTO, *TEXT_SERVERS),
            help=sentence("the program, from the environment on the node"),
        ),
        RecipeSetting(
            "context_tokens",
            int,
            4096,
            least=16,
            most=2**22,
            help=sentence("most tokens of a prompt and its answer"),
        ),
        RecipeSetting(
            "sequences",
            int,
            8,
            least=1,
            most=1024,
            help=sentence("requests that are computed together"),
        ),
        RecipeSetting(
            "precision",
            str,
            "bf16",
            choices=tuple(DTYPES),
            help=sentence("of weights and KV cache"),
        ),
        *_SIMULATED,
    ),
    needs_isolation=True,
)
"""The recipe of Jobs of kind ``text``. They are started at /serve/text/."""
WORKSPACE = Recipe(
    name="workspace",
    title=sentence("Workspace"),
    about=sentence("Runs an interactive program, such as JupyterLab."),
    settings=(
        RecipeSetting(
            "app",
            str,
            JUPYTER_LAB.name,
            choices=(*WORKSPACE_APPS, TERMINAL),
            help=sentence("the program, from the environment of its owner"),
        ),
        RecipeSetting(
            "folder",
            str,
            "",
            help=sentence("the folder that it shows, from the home of its owner"),
            reads="home",
        ),
        *_SIMULATED,
    ),
    needs_isolation=True,
)
"""The recipe of Jobs of kind ``workspace``. They are opened from the page of a
Reservation.
"""
RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        *(TINY_TRANSFORMER, BURN_IN, OWN_MODEL),
        *(FINE_TUNE, FINE_TUNE_IMAGES, PRE_TRAIN, EXPORT_ONNX),
    )
}
KNOWN_RECIPES: dict[str, Recipe] = {
    **RECIPES,
    SERVE.name: SERVE,
    SERVE_TEXT.name: SERVE_TEXT,
    WORKSPACE.name: WORKSPACE,
}
BY_TORCHRUN = (TINY_TRANSFORMER.name, OWN_MODEL.name, *OF_PRETRAINED)


def checked_settings(name: str, given: Mapping[str, object]) -> dict[str, Any]:
    """Return a recipe's settings with the defaults filled in.

    Raises:
        LaunchInvalid: the problem of each invalid field.
    """
    recipe = KNOWN_RECIPES.get(name)
    if recipe is None:
        there = ", ".join(RECIPES)
        raise LaunchInvalid(
            {
                "recipe": sentence(
                    "there is no '{name}'. Choose one of: {there}",
                    name=name[:40],
                    there=there,
                )
            }
        )
    known = {setting.name: setting for setting in recipe.settings}
    problems: dict[str, str] = {
        f"recipe_settings.{str(key)[:40]}": sentence("this recipe has no such setting")
        for key in given
        if key not in known
    }
    checked: dict[str, Any] = {}
    for setting in recipe.settings:
        try:
            checked[setting.name] = _checked(
                setting, given.get(setting.name, setting.default)
            )
        except ValueError as error:
            problems[f"recipe_settings.{setting.name}"] = str(error)
    if not problems and name == TINY_TRANSFORMER.name:
        problems = _transformer_problems(checked)
    if problems:
        raise LaunchInvalid(problems)
    return checked


def runs_without_gpus(name: str | None, settings: Mapping[str, object]) -> bool:
    """Return whether a recipe is a workspace's program that uses no Gpu."""
    app = WORKSPACE_APPS.get(str(settings.get("app")))
    return name == WORKSPACE.name and app is not None and not app.uses_gpus


def recipe_command(
    name: str,
    settings: Mapping[str, object],
    *,
    gpu_count: int,
    python: str,
    plan: Mapping[str, Any] | None = None,
    world: int = 0,
) -> list[str]:
    """Return the argv that starts a recipe on so many Gpus.

    Args:
        name: of the recipe.
        settings: of the recipe.
        gpu_count: number of its Gpus.
        python: the interpreter.
        plan: the Plan (as JSON) in its folder as plan.json, if any.
        world: processes on all its nodes together; 0: there is no other node.

    Raises:
        LaunchInvalid: unknown recipe or settings, or a strategy without its Plan.
    """
    checked = checked_settings(name, settings)
    text = json.dumps(checked, sort_keys=True)
    if name == BURN_IN.name:
        return [python, "-m", "placement.agent.runtime.burn_in", text]
    if name == EXPORT_ONNX.name:
        return [python, "-m", "placement.agent.runtime.onnx_export", text]
    if name == SERVE.name:
        return [python, "-m", "placement.agent.serving.server_guard", text]
    if name == SERVE_TEXT.name:
        return [python, "-m", "placement.agent.serving.language_model_host", text]
    if name == WORKSPACE.name and checked["app"] == TERMINAL:
        return [python, "-m", "placement.agent.access.terminal_host"]
    if name == WORKSPACE.name:
        return [python, "-m", "placement.agent.access.workspace_host", text]
    launch = [python, "-m", "placement.agent.runtime.recipe_launch", name]
    if plan is not None and runs_by_plan(plan):
        count = len(plan["shards"])
        if count != (world or gpu_count):
            got = world or gpu_count
            raise LaunchInvalid(
                {
                    "plan": sentence(
                        "is for {count} GPUs, not {got}", count=count, got=got
                    )
                }
            )
        if _by_deepspeed(checked) and (why := why_not_deepspeed(plan)):
            raise LaunchInvalid({FIELD: why})
        return [*launch, str(gpu_count), text, PLAN_FILE]
    check_needs_no_plan(checked)
    return [*launch, str(process_count(checked, gpu_count=gpu_count)), text]


def runs_by_plan(plan: Mapping[str, Any] | None) -> bool:
    """Return whether the recipe follows a Plan (as JSON)."""
    return plan is not None and bool(plan.get("shards")) and not why_not(plan)


def check_needs_no_plan(settings: Mapping[str, Any]) -> None:
    """Refuse a strategy whose shares and stages need a Plan, and settings that do not
    agree.

    Raises:
        LaunchInvalid: at the setting.
    """
    if _by_deepspeed(settings):
        raise LaunchInvalid({FIELD: NEEDS_PLAN})
    if settings.get("weights") in QUANTIZED and not settings.get("lora_rank"):
        raise LaunchInvalid({WEIGHTS_FIELD: NEEDS_ADAPTERS})
    strategy = settings.get("strategy", "auto")
    if strategy not in ("auto", *WITHOUT_PLAN):
        raise LaunchInvalid(
            {
                "recipe_settings.strategy": sentence(
                    "{strategy} needs a plan: make one first", strategy=strategy
                )
            }
        )


def _by_deepspeed(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("backend", TORCH) != TORCH)


def process_count(settings: Mapping[str, Any], *, gpu_count: int) -> int:
    """Return how many processes train: one per Gpu, or one."""
    return 1 if settings.get("strategy") == SINGLE.key else max(1, gpu_count)


def claim_bytes(settings: Mapping[str, Any]) -> int:
    """Return the bytes that a recipe occupies on each simulated Gpu."""
    return int(float(settings["simulated_memory_gib"]) * GIB)


def _checked(setting: RecipeSetting, value: object) -> int | float | str:
    if setting.kind is str and not setting.choices:
        return _text(setting, value)
    if setting.kind is str:
        if value not in setting.choices:
            raise ValueError(
                sentence("must be one of {choices}", choices=", ".join(setting.choices))
            )
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(sentence("must be a number"))
    if not setting.least <= value <= setting.most:  # false for NaN
        raise ValueError(
            sentence(
                "must be {least} to {most}",
                least=_figure(setting.least),
                most=_figure(setting.most),
            )
        )
    if setting.kind is int and value != int(value):
        raise ValueError(sentence("must be a whole number"))
    return setting.kind(value)  # type: ignore[no-any-return]


def _figure(bound: float) -> str:
    """Return a bound as people write it.

    >>> _figure(10_000_000), _figure(1e-7), _figure(0.5)
    ('10,000,000', '0.0000001', '0.5')
    """
    if bound == int(bound):
        return f"{int(bound):,}"
    return f"{bound:.12f}".rstrip("0")


def _text(setting: RecipeSetting, value: object) -> str:
    """Parse free text by its Setting. Raises ValueError with the expected form."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > 300:
        raise ValueError(sentence("must be at most 300 printable characters"))
    if setting.reads == "entry":
        return str(_entry_point(value))
    if setting.reads == "model":
        return _model_name(value.strip())
    if setting.reads == "export" and ":" in value:
        return str(_entry_point(value))
    if setting.reads in ("own-model", "export") and (value or setting.is_required):
        return _model_name(value.strip())
    if setting.reads == "dataset":
        return _data_path(value.strip())
    if setting.reads == "images" and not value.strip().startswith("/"):
        raise ValueError(sentence("must be the absolute path of a folder on the node"))
    if setting.reads == "layers":
        return _layer_names(value)
    if setting.reads == "job" and not _JOB_FOLDER.fullmatch(value):
        raise ValueError(sentence("must name a job"))
    if setting.reads == "name" and not _MODEL_NAME.fullmatch(value):
        raise ValueError(sentence("must be the name of a model"))
    if setting.reads in ("home", "job", "name", "own-model"):
        return value.strip()
    if setting.reads == "column":
        if not value.strip():
            raise ValueError(sentence("name the column that has the text"))
        return value
    if value and not value.startswith("/"):
        raise ValueError(sentence("must be an absolute path on the node, or empty"))
    return value


def _entry_point(value: str) -> EntryPoint:
    """Return what a module:callable names. Raises ValueError."""
    try:
        return EntryPoint.read(value.strip())
    except SpecInvalid as error:
        raise ValueError(error.fields["entry"]) from error


def _model_name(value: str) -> str:
    """Return the folder or the cached name of a model. Raises ValueError."""
    if value.startswith("/") or _HUB_NAME.fullmatch(value):
        return value
    raise ValueError(
        sentence(
            "must be the absolute path of the model's folder on the node, or its name "
            "in the Hugging Face cache, such as Qwen/Qwen3-8B"
        )
    )


def _data_path(value: str) -> str:
    """Return the path of a data set. Raises ValueError."""
    if value.startswith("/") and value.endswith(DATA_SUFFIXES):
        return value
    raise ValueError(
        sentence(
            "must be the absolute path of a file on the node that ends with {suffixes}",
            suffixes=", ".join(DATA_SUFFIXES),
        )
    )


def _layer_names(value: str) -> str:
    """Return names of layers, separated by one space. Raises ValueError.

    >>> _layer_names("q_proj,  v_proj")
    'q_proj v_proj'
    """
    names = " ".join(value.replace(",", " ").split())
    if _LAYER_NAMES.fullmatch(names):
        return names
    raise ValueError(
        sentence("must name linear layers, such as q_proj v_proj, or be all-linear")
    )


def adapters_of(plan: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of recipe ``fine-tune`` for a Plan and its model (as JSON).

    >>> shape = {"lora_rank": 8, "lora_targets": ["k_proj", "v_proj"]}
    >>> adapters_of({"launch": {"weights": "nf4"}}, {"shape": shape})
    {'lora_rank': 8, 'lora_targets': 'k_proj v_proj', 'weights': 'nf4'}
    >>> adapters_of({}, {"shape": None})
    {}
    """
    shape = spec.get("shape") or {}
    if not shape.get("lora_rank"):
        return {}
    return {
        "lora_rank": shape["lora_rank"],
        "lora_targets": " ".join(shape.get("lora_targets", ())),
        "weights": planned_form(plan, spec),
    }


def planned_sizes(recipe: str, plan: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes that a recipe takes from a Plan (as JSON) by default.

    >>> plan = {"workload": {"sequence_length": 64}, "launch": {"microbatch": 4}}
    >>> planned_sizes("fine-tune", plan)
    {'seq': 64, 'batch': 4}
    >>> planned_sizes("fine-tune-images", plan), planned_sizes("burn-in", plan)
    ({'batch': 4}, {})
    """
    found = {
        "seq": plan.get("workload", {}).get("sequence_length"),
        "batch": plan.get("launch", {}).get("microbatch"),
    }
    names = {"batch"} if recipe == FINE_TUNE_IMAGES.name else set(found)
    if recipe not in OF_PRETRAINED:
        names = set()
    return {name: size for name, size in found.items() if size and name in names}


def with_planned_sizes(
    recipe: str, plan: Mapping[str, Any], given: Mapping[str, object]
) -> dict[str, Any]:
    """Return checked settings of a recipe with the sizes that they leave to a Plan.

    Args:
        recipe: its name.
        plan: the Plan (as JSON).
        given: the settings that were sent.

    Raises:
        LaunchInvalid: at the settings that were sent. At `plan` if one of its sizes is
            beyond a limit of the recipe.
    """
    sizes = planned_sizes(recipe, plan)
    try:
        return checked_settings(recipe, {**sizes, **given})
    except LaunchInvalid as error:
        planned = {f"recipe_settings.{name}": name for name in sizes.keys() - given}
        problems = {k: why for k, why in error.fields.items() if k not in planned}
        names = sorted(planned[field] for field in error.fields if field in planned)
        if not names:
            raise
        first = next(s for s in RECIPES[recipe].settings if s.name == names[0])
        problems["plan"] = sentence(
            "has {size} as {name}, and the recipe takes {least} to {most}",
            size=_figure(sizes[first.name]),
            name=first.name,
            least=_figure(first.least),
            most=_figure(first.most),
        )
        raise LaunchInvalid(problems) from error


def as_planned(
    settings: Mapping[str, Any], plan: Mapping[str, Any], spec: Mapping[str, Any]
) -> dict[str, Any]:
    """Return settings of recipe ``fine-tune`` with what they leave to a Plan (as JSON).

    >>> as_planned({"lora_rank": 2, "weights": "auto"}, {}, {"quantized_as": "nf4"})
    {'lora_rank': 2, 'weights': 'nf4'}
    """
    found = {"weights": planned_form(plan, spec)}
    if not settings["lora_rank"]:
        found = adapters_of(plan, spec)
    if settings["weights"] != AS_PLANNED:
        found.pop("weights", None)
    return {**settings, **found}


def _transformer_problems(settings: Mapping[str, Any]) -> dict[str, str]:
    if settings["hidden"] % settings["heads"]:
        return {
            "recipe_settings.heads": (
                sentence(
                    "must divide the hidden width {hidden}", hidden=settings["hidden"]
                )
            )
        }
    return {}
