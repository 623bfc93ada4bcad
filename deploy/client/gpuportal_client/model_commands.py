"""Commands for models: whether one fits, kept plans, and models that are served."""

from pathlib import Path

from gpuportal_client.file_upload import FileUpload
from gpuportal_client.instants import clock, hours, iso, local
from gpuportal_client.job_commands import setting
from gpuportal_client.listing import JSON_OPTION, show
from gpuportal_client.portal_api import Refused
from gpuportal_client.saved_login import portal

OBJECTIVES = ("soonest", "fastest", "fewest", "least_disturbance", "cheapest")
ADMITS = ("owner", "account", "anybody")
GIB_BYTES = 2**30
MODEL_FILES = (".json", ".onnx", ".safetensors", ".bin", ".pt", ".pth", ".zip")
"""Ends of names that are meant as files. No well-known model has them."""


def _model(names, to):
    """Return which model is meant: files that are here, or the name of a known one."""
    paths = [Path(name) for name in names]
    if len(names) == 1 and not paths[0].exists():
        if paths[0].suffix in MODEL_FILES or ("/" in names[0] and paths[0].suffix):
            raise Refused(f"there is no file {names[0]}", 2)
        return {"model": names[0]}
    sent = FileUpload([("file", path) for path in paths])
    return {"model_id": to.ask("POST", "/models", sent)["id"]}


def plan(args):
    """Say whether a model fits, and rank the ways to run it on the GPUs."""
    to = portal()
    wish = {
        "workload": dict(args.set),
        "hours": args.hours,
        "at": args.at and iso(args.at),
        "reservation": args.reservation,
        "max_gpus": args.gpus,
        "wish": args.wish,
        "keep": None if args.keep is None else args.keep - 1,
    }
    if args.keep is not None and args.keep < 1:
        raise Refused("--keep is the number of a plan in the list, from 1", 2)
    body = {name: value for name, value in wish.items() if value is not None}
    answer = to.ask("POST", "/plans", _model(args.model, to) | body)
    if not args.json:
        likely = answer["estimate"]["likely_bytes"] / GIB_BYTES
        print(f"{answer['spec']['name']}: {likely:.1f} GiB on one GPU")
        if answer.get("advice"):
            print(answer["advice"])
    rows = []
    for number, one in enumerate(answer["plans"], 1):
        step = one["step_seconds"]
        speed = f"{step:.3g} s a step" if step >= 0.001 else "under 1 ms a step"
        where = ", ".join(shard["gpu_label"] for shard in one["shards"])
        rows.append((number, one["title"], one["fit"], speed, where))
    show(args, answer, rows)
    if args.json:
        return
    for one in answer["refusals"]:
        print(f"no {one['title']}: {one['reason']}")
    if answer["kept"]:
        print(f"kept as plan {answer['kept']['id']}")


def plans(args):
    """List the plans that you kept. --get writes the files that start one."""
    to = portal()
    if args.number is None:
        if args.get:
            raise Refused("--get needs the number of a plan", 2)
        answer = to.whole("/plans", "plans")
        found = answer["plans"]
        rows = ((one["id"], clock(one["created_at"]), one["title"]) for one in found)
        show(args, answer, rows)
        return
    answer = to.ask("GET", f"/plans/{args.number}/files")
    if not args.get:
        show(args, answer, ((one["name"], one["about"]) for one in answer["files"]))
        return
    folder = Path(args.to)
    folder.mkdir(parents=True, exist_ok=True)
    for one in answer["files"]:
        if one["name"] != Path(one["name"]).name or one["name"] in ("", "..", "."):
            raise Refused(f"{one['name']!r} is not a valid file name")
        place = folder / one["name"]
        # x: nothing is written over.
        with place.open("x", encoding="utf-8") as file:
            file.write(one["text"])
        print(place)


def serve(args):
    """Serve an ONNX model: in a reservation, for hours from now, or at an endpoint."""
    to = portal()
    ways = (args.reservation, args.hours, args.endpoint)
    if sum(way is not None for way in ways) != 1:
        raise Refused("give one of --reservation, --hours and --endpoint", 2)
    files = [("file", Path(args.model))]
    files += [("beside", Path(name)) for name in args.beside]
    stored = to.ask("POST", "/serve/files", FileUpload(files))
    body = {"file": stored["id"], "name": args.name}
    if args.endpoint is not None:
        made = to.ask("POST", f"/serve/{args.endpoint}/models", body)
        print(f"model {made['name']} at endpoint {args.endpoint}: {made['state']}")
        return
    body |= {"reservation": args.reservation, "hours": args.hours}
    made = to.create("/serve", body | {"admits": args.admits})
    print(f"endpoint {made['job']}: {made['state']} on {made['gpu']}")
    print(to.url + made["address"])


def served(args):
    """List the endpoints of models. --remove takes a model out, --move moves one."""
    to = portal()
    if args.remove or args.move or args.admits:
        if args.endpoint is None:
            raise Refused("give the number of an endpoint", 2)
        address = f"/serve/{args.endpoint}"
        if args.remove:
            to.ask("DELETE", f"{address}/models/{args.remove}")
            print(f"removed {args.remove}")
        elif args.move:
            made = to.ask("POST", f"{address}/move", {})
            print(f"endpoint {made['job']}: {made['state']} on {made['gpu']}")
        else:
            made = to.ask("PATCH", address, {"admits": args.admits})
            print(f"endpoint {made['job']} accepts models of: {made['admits']}")
        return
    if args.endpoint is None:
        answer = to.whole("/serve", "endpoints")
        found = answer["endpoints"]
    else:
        answer = to.ask("GET", f"/serve/{args.endpoint}")
        found = [answer]
    rows = []
    for one in found:
        end, where = f"until {clock(one['ends_at'])}", to.url + one["address"]
        rows.append((one["job"], one["state"], one["gpu"], end, where))
        rows += [("", row["state"], row["name"], "", "") for row in one["models"]]
    show(args, answer, rows)


def serve_text(args):
    """Serve a language model by an OpenAI-compatible API, on the fewest GPUs."""
    if (args.model is None) == (args.job is None):
        raise Refused("give a model, or --job with a job that has trained one", 2)
    if (args.reservation is None) == (args.hours is None):
        raise Refused("give one of --reservation and --hours", 2)
    to = portal()
    wish = {
        "model": args.model,
        "job": args.job,
        "name": args.name,
        "well_known": args.like,
        "context_tokens": args.context,
        "sequences": args.sequences,
        "precision": args.precision,
        "server": args.server,
        "environment_folder": args.env,
        "callers": args.callers,
        "reservation": args.reservation,
        "hours": args.hours,
        "gpus": args.gpus,
    }
    if args.config is not None:
        wish["spec"] = _model([args.config], to).get("model_id")
        if wish["spec"] is None:
            raise Refused(f"there is no file {args.config}", 2)
    body = {name: value for name, value in wish.items() if value is not None}
    made = to.create("/serve/text", body)
    size = f"{made['total_bytes'] / GIB_BYTES:.1f} GiB"
    where = ", ".join(made["gpus"])
    print(f"{made['name']}, job {made['job']}: {made['state']}, {size} on {where}")
    print(to.url + made["address"])


def served_text(args):
    """List the language models that are served. --callers sets who may call one."""
    to = portal()
    if args.callers:
        if args.job is None:
            raise Refused("give the number of a job", 2)
        made = to.ask("PATCH", f"/serve/text/{args.job}", {"callers": args.callers})
        print(f"{made['name']} may be called by: {made['callers']}")
        return
    if args.job is None:
        answer = to.whole("/serve/text", "endpoints")
        found = answer["endpoints"]
    else:
        answer = to.ask("GET", f"/serve/text/{args.job}")
        found = [answer]
    rows = []
    for one in found:
        end, where = f"until {clock(one['ends_at'])}", to.url + one["address"]
        gpus = ", ".join(one["gpus"])
        rows.append((one["job"], one["state"], one["name"], gpus, end, where))
    show(args, answer, rows)


def model_files(args):
    """List the model files that you stored for serving. --remove deletes one."""
    to = portal()
    if args.remove is not None:
        to.ask("DELETE", f"/serve/files/{args.remove}")
        print(f"removed file {args.remove}")
        return
    answer = to.whole("/serve/files", "files")
    rows = (
        (one["id"], f"{one['size_bytes']:,} bytes", one["name"])
        for one in answer["files"]
    )
    show(args, answer, rows)


def declare(word):
    """Add the commands of this module."""
    planned = word(
        plan,
        hours={"type": hours, "help": "for how long (default: 4)"},
        at={"type": local, "help": "earliest start (default: now)"},
        reservation={"type": int, "help": "only GPUs of this reservation"},
        gpus={"type": int, "help": "at most so many GPUs"},
        wish={"choices": OBJECTIVES, "help": "what the plans are ranked by"},
        keep={"type": int, "metavar": "NUMBER", "help": "keep this plan of the list"},
        json=JSON_OPTION,
    )
    planned.add_argument(
        "--set",
        type=setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a value of the workload, such as batch=16 or sequence_length=2048",
    )
    planned.add_argument(
        "model",
        nargs="+",
        help="name of a well-known model, or config.json, .safetensors or ONNX files",
    )
    kept = word(
        plans,
        get={"action": "store_true", "help": "write its files"},
        to={"default": ".", "metavar": "FOLDER", "help": "write into this folder"},
        json=JSON_OPTION,
    )
    kept.add_argument("number", nargs="?", type=int, help="number of a plan")
    brought = word(
        serve,
        reservation={"type": int, "help": "on a GPU of this reservation"},
        hours={"type": hours, "help": "in a new reservation from now on"},
        endpoint={"type": int, "help": "at this endpoint, beside its models"},
        name={"default": "", "help": "name of the model (default: of the file)"},
        admits={
            "choices": ADMITS,
            "default": "owner",
            "help": "whose models it accepts (default: owner)",
        },
        beside={
            "action": "append",
            "default": [],
            "metavar": "FILE",
            "help": "a file with weights. Give it again for several",
        },
    )
    brought.add_argument("model", help="the .onnx file, or its folder as .zip or .tar")
    shown = word(
        served,
        remove={"metavar": "NAME", "help": "remove this model"},
        move={"action": "store_true", "help": "move it to the best other GPU"},
        admits={"choices": ADMITS, "help": "whose models"},
        json=JSON_OPTION,
    )
    shown.add_argument("endpoint", nargs="?", type=int, help="number of an endpoint")
    text = word(
        serve_text,
        job={"type": int, "help": "the model that this job has trained"},
        reservation={"type": int, "help": "on GPUs of this reservation"},
        hours={"type": hours, "help": "in a new reservation from now on"},
        gpus={"type": int, "help": "at most so many GPUs"},
        name={"help": "name in requests (default: of the model)"},
        like={
            "metavar": "KNOWN",
            "help": "well-known model whose memory it has (default: by its name)",
        },
        config={"metavar": "FILE", "help": "its config.json, to estimate its memory"},
        context={"type": int, "help": "tokens of prompt and answer (default: 4096)"},
        sequences={"type": int, "help": "requests at once (default: 8)"},
        precision={
            "choices": ("bf16", "fp16", "fp32"),
            "help": "default: bf16, or fp16 if none of the GPUs has bf16",
        },
        server={"choices": ("auto", "vllm", "transformers"), "help": "default: auto"},
        env={"metavar": "ENVIRONMENT", "help": "environment on the node with it"},
        callers={"choices": ADMITS, "help": "who may call it (default: owner)"},
    )
    text.add_argument(
        "model",
        nargs="?",
        help="folder on the node, or name in the Hugging Face cache there",
    )
    texts = word(
        served_text,
        callers={"choices": ADMITS, "help": "who may call it"},
        json=JSON_OPTION,
    )
    texts.add_argument("job", nargs="?", type=int, help="number of its job")
    gone = {"type": int, "metavar": "NUMBER", "help": "delete this file"}
    word(model_files, remove=gone, json=JSON_OPTION)
