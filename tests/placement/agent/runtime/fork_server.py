"""A process that has imported torch and forks itself on request.

Importing torch and the recipes' other packages takes longer than most trainings of the
tests. A `ForkServer` imports it once. Its `python` is a program that replaces the
interpreter: ``python -m module words`` runs the module, and ``python script words`` the
script, in a fork of the server, with the caller's environment, folder and streams. The
program passes signals on, and it ends like the fork. The fork is killed when the
program is.

A fork waits for its threads, calls what is registered for the exit and flushes its
streams, as an interpreter does. It does not then destroy its modules: that would copy
every page of torch's objects, which costs as much as the start of a training.
"""

import atexit
import contextlib
import gc
import inspect
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from gpuportal.supervisor.kernel import die_with_parent

CODE = Path(__file__).resolve().parents[4]
IMPORTED = (
    "torch._dynamo",
    "torch.distributed.run",
    "placement.agent.runtime.by_deepspeed",
    "placement.agent.runtime.fine_tune_worker",
    "placement.agent.runtime.pre_train_worker",
    "placement.agent.runtime.training_checkpoint",
    "placement.planner.memory.estimate",
    "peft",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.mixtral.modeling_mixtral",
    "transformers.models.qwen3.modeling_qwen3",
    # What a checkpoint, an adapter and a saved model import when they are needed.
    "torch.distributed.checkpoint._fsspec_filesystem",
    "torch.utils.serialization.config",
    "peft.tuners.lora.bnb",
    "peft.utils.transformers_weight_conversion",
)
OPTIONAL = "deepspeed"
"""Imported if it is installed: accelerate does so in each rank that saves a model."""
STREAMS = (0, 1, 2)
LENGTH = struct.Struct("!q")
"""The length before a request, and the exit status that answers it."""
PROGRAM = """#!{python} -IS
import json, os, signal, socket, struct, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [struct.pack("!q", len(request))], [0, 1, 2])
server.sendall(request)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, lambda number, _: server.send(bytes([number])))
answer = server.recv(8, socket.MSG_WAITALL)
status = struct.unpack("!q", answer)[0] if len(answer) == 8 else 1
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


class ForkServer:
    """The server as its parent sees it."""

    def __init__(self, folder: Path) -> None:
        """Start it. The folder is for the program and the server's address."""
        address = folder / "server"
        self.python = folder / "python"
        self.python.write_text(
            PROGRAM.format(python=sys.executable, address=str(address))
        )
        self.python.chmod(0o755)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(address))
            # Callers wait here until the server has imported everything.
            listener.listen(64)
            self.process = subprocess.Popen(
                [sys.executable, "-m", __spec__.name, str(listener.fileno())],
                cwd=CODE,
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": str(CODE),
                    "OMP_NUM_THREADS": "1",
                },
                stdin=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                preexec_fn=die_with_parent(signal.SIGKILL),
            )

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment with which torchrun starts its workers from the server
        too.
        """
        return {"PYTHON_EXEC": str(self.python)}

    def output(self, code: str) -> str:
        """Run a program in a fork. Return what it prints on its standard output."""
        done = subprocess.run(
            [str(self.python), "-c", code],
            cwd=CODE,
            env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout

    def close(self) -> None:
        """End the server."""
        self.process.kill()
        self.process.wait()


Request = tuple[list[str], str, dict[str, str]]
"""The interpreter's words, the folder and the environment."""


class Forks:
    """The server's own state: its callers and their forks."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.callers: dict[int, socket.socket] = {}
        """By the number of the fork."""

    def serve(self) -> Request:
        """Fork for every caller. Return, in a fork only, what it has to run."""
        woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            waiting = [self.listener, woken, *self.callers.values()]
            ready, _, _ = select.select(waiting, [], [])
            if woken in ready:
                os.read(woken, 4096)
                self._answer()
            for number, caller in list(self.callers.items()):
                if caller in ready:
                    self._pass_on(number, caller)
            if self.listener in ready and (request := self._accept()):
                return request

    def _answer(self) -> None:
        """Send each caller the exit status of its fork."""
        while True:
            try:
                number, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if number == 0:
                return
            # A caller that was killed receives nothing.
            if caller := self.callers.pop(number, None):
                with caller, contextlib.suppress(BrokenPipeError):
                    caller.send(LENGTH.pack(os.waitstatus_to_exitcode(status)))

    def _pass_on(self, number: int, caller: socket.socket) -> None:
        """Give a fork the signals that its caller got; kill it if that was killed."""
        for signum in caller.recv(64) or [signal.SIGKILL]:
            os.kill(number, signum)
            if signum == signal.SIGKILL:
                self.callers.pop(number).close()

    def _accept(self) -> Request | None:
        caller, _ = self.listener.accept()
        head, streams, _, _ = socket.recv_fds(caller, LENGTH.size, len(STREAMS))
        (length,) = LENGTH.unpack(head)
        request: Request = json.loads(caller.recv(length, socket.MSG_WAITALL))
        dies_with_this = die_with_parent(signal.SIGKILL)
        number = os.fork()
        if number:
            self.callers[number] = caller
            for stream in streams:
                os.close(stream)
            return None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        dies_with_this()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        for stream, target in zip(streams, STREAMS, strict=True):
            os.dup2(stream, target)
        for own in (self.listener, caller, *self.callers.values()):
            own.detach()
        os.closerange(len(STREAMS), 256)
        return request


def run(words: list[str], folder: str, environ: dict[str, str]) -> None:
    """Do what ``python words`` does in that folder with that environment."""
    os.chdir(folder)
    os.environ.clear()
    os.environ |= environ
    given = [word for word in environ.get("PYTHONPATH", "").split(":") if word]
    sys.path[:] = [folder, *given, *(path for path in sys.path if path not in given)]
    while words[0].startswith("-") and words[0] not in ("-m", "-c"):
        words = words[1:]
    if not words[0].startswith("-"):
        sys.path[0] = str(Path(words[0]).parent)
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
        return
    kind, what, *rest = words
    sys.argv = [kind, *rest]
    if kind == "-c":
        exec(what, {"__name__": "__main__"})
    else:
        runpy.run_module(what, run_name="__main__", alter_sys=True)


def main() -> None:
    """Import, then fork for every caller."""
    for name in IMPORTED:
        import_module(name)
    if find_spec(OPTIONAL):
        os.environ["DS_ACCELERATOR"] = "cpu"
        import_module(OPTIONAL)
    # torchrun asks for the names of its callers many times. The first answer reads the
    # paths of all modules, and so does each that comes to runpy, which has no file.
    # With so many modules that takes 1.4 seconds of CPU in each torchrun.
    inspect.stack()
    inspect.modulesbyfile["<frozen runpy>"] = runpy.__name__  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()
    request = Forks(socket.socket(fileno=int(sys.argv[1]))).serve()
    status = 0
    try:
        run(*request)
    except SystemExit as end:
        status = exit_status(end)
    except KeyboardInterrupt:
        # Only the interpreter can end itself by the signal.
        raise
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def exit_status(end: SystemExit) -> int:
    """Return what an interpreter ends with. A text is printed, as it does."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    print(end.code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
