"""GPU Portal from a shell: find a slot, book, run, follow, extend, give back.

Create a token on the portal's page "Settings" with the permissions read, book and job.
Then:

    %(prog)s login https://portal.example       asks for the token, saves it (mode 600)
    %(prog)s gpus --free                        lists the GPUs that are free now
    %(prog)s find --gpus 2 --hours 8            lists the first slots that fit
    %(prog)s book --gpus 2 --hours 8 --for "thesis, run 3"
    %(prog)s mine                               lists your reservations
    %(prog)s run train.py --reservation 17 --follow -- --epochs 3
    %(prog)s run train.py --reservation 17 --env /home/you/venv --launcher torchrun
    %(prog)s run test.py --reservation 17 --after 5
    %(prog)s run --recipe burn-in --set seconds=60 --reservation 17
    %(prog)s jobs | log 5 --follow | stop 5
    %(prog)s files 5 | files 5 --get --to results/
    %(prog)s extend 17 --hours 2 | release 17
    %(prog)s ssh 17 [-- nvidia-smi]             a shell on the node of reservation 17
    %(prog)s workspace start --reservation 17   JupyterLab there: workspace open 3
    %(prog)s keys | keys add ~/.ssh/id_ed25519.pub | keys remove 4
    %(prog)s config-ssh                         ssh r17.gpuportal, scp and VS Code
    eval "$(%(prog)s completion bash)"          completes commands, options and numbers

The variables GPUPORTAL_URL and GPUPORTAL_TOKEN override the saved login. Exit status:
0 done, 1 the portal refused (its reason is printed) or the job failed, 2 wrong use or
bad input, 3 the portal cannot be reached. "log --follow" waits until it can.
"""

import argparse
import importlib
import os
import sys

from gpuportal_client import __version__, program, saved_login
from gpuportal_client.portal_api import Refused

MODULES = (
    "saved_login",
    "board_commands",
    "booking_commands",
    "sharing_commands",
    "job_commands",
    "model_commands",
    "ssh_commands",
    "ssh_tunnel",
    "workspace_commands",
    "completion",
)
"""Modules with commands, in the order of the help."""
OF_SSH = {"tunnel": "ssh_tunnel", "certificate": "ssh_commands"}
"""Commands that ssh starts for each connection. Only their module is loaded, because
the one file is compiled each time it starts.
"""
COMPLETE = "__complete"
"""The word with which a shell asks for completions."""


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, and knows its arguments for completion."""

    def __init__(self, **options):
        self.taken, self.commands = [], {}
        super().__init__(**options)

    def add_argument(self, *names, **options):
        """Add an argument, and note it."""
        made = super().add_argument(*names, **options)
        self.taken.append(made)
        return made

    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def parser(modules=MODULES):
    """Return what understands the command line. Load the modules of its commands."""
    raw = argparse.RawDescriptionHelpFormatter
    made = Parser(prog=program(), description=__doc__, formatter_class=raw)
    made.add_argument("--version", action="version", version=f"gp {__version__}")
    words = made.add_subparsers(dest="word", required=True)

    def word(act, *numbers, also=(), **options):
        name, about = act.__name__.replace("_", "-"), act.__doc__
        one = words.add_parser(name, help=about, description=about, aliases=also)
        one.set_defaults(act=act)
        for name in numbers:
            one.add_argument(name, type=int, help=f"number of the {name}")
        for name, given in options.items():
            one.add_argument(f"--{name.replace('_', '-')}", **given)
        return one

    for name in modules:
        importlib.import_module(f"gpuportal_client.{name}").declare(word)
    made.commands = words.choices
    return made


def main(argv=None):
    """Do what the command line says; return the exit status."""
    words = sys.argv[1:] if argv is None else argv
    # A terminal that knows few characters is no reason to fail.
    getattr(sys.stdout, "reconfigure", lambda **_: None)(errors="replace")
    if words[:1] == [COMPLETE]:
        from gpuportal_client import completion

        completion.complete(parser(), words[1:])
        return 0
    cut = words.index("--") if "--" in words else len(words)
    modules = (OF_SSH[words[0]],) if words[:1] and words[0] in OF_SSH else MODULES
    args = parser(modules).parse_args(words[:cut])
    args.arguments = words[cut + 1 :]
    try:
        args.act(args)
        sys.stdout.flush()
        if newer := saved_login.newer_version():
            words = f"the portal offers version {newer} (page Settings)"
            print(f"{program()}: {words}, this is {__version__}", file=sys.stderr)
    except Refused as refused:
        print(f"{program()}: {refused}", file=sys.stderr)
        return refused.status
    except BrokenPipeError:
        # The reader has closed the pipe: gp log 5 | head.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UnicodeDecodeError:
        name = getattr(args, "script", None) or getattr(args, "value", "")
        print(f"{program()}: {name} is not a text file", file=sys.stderr)
        return 2
    except FileNotFoundError as error:
        print(f"{program()}: there is no file {error.filename}", file=sys.stderr)
        return 2
    except OSError as error:
        words = f"{error.filename}: {error.strerror}" if error.filename else error
        print(f"{program()}: {words}", file=sys.stderr)
        return 2
    except (LookupError, TypeError, ValueError) as error:
        # The answer lacks a field, or has another kind of value in it.
        fault = f"{type(error).__name__}: {error}"
        words = "get this program again from the portal's page Settings"
        print(
            f"{program()}: the portal's answer is not as expected ({fault}); {words}",
            file=sys.stderr,
        )
        return 3
    except KeyboardInterrupt:
        return 130
    return 0
