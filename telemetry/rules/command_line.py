"""The part of a command line that others may read: the program, never its arguments.

Arguments carry tokens, paths and names of students' experiments. The owner of the
process reads the whole line. Everybody else reads the program's name and, after an
interpreter, the script's or module's.
"""

from __future__ import annotations

import re
from itertools import zip_longest

_INTERPRETER = re.compile(
    r"(?:python|pypy|ipython|bash|sh|zsh|ruby|perl|node|julia|Rscript)[\d.]*"
)
_SCRIPT = re.compile(r"[\w.+-]+\.(?:py|sh|jl|R|r|rb|pl|js|ipynb)")
_MODULE = re.compile(r"[A-Za-z_][\w.]*")
_INLINE = re.compile(r"-[A-Za-z]*[ce]")
"""Options that carry a program as text, so that no file name follows."""
LONGEST = 40


def short_command(command: str) -> str:
    """Return program and script of a command line, without folders and arguments.

    >>> short_command("/usr/bin/python3 -u /home/al/lm/train.py --key s3cr3t")
    'python3 train.py'
    >>> short_command("python -m torch.distributed.run ppo.py")
    'python -m torch.distributed.run'
    >>> short_command("./a.out secret"), short_command("")
    ('a.out', '')
    """
    words = command.split()
    if not words:
        return ""
    program = _base(words[0])
    if not _INTERPRETER.fullmatch(program):
        return program[:LONGEST]
    rest = words[1:]
    for word, following in zip_longest(rest, rest[1:], fillvalue=""):
        if word == "-m" and _MODULE.fullmatch(following):
            return f"{program} -m {following}"[:LONGEST]
        if _SCRIPT.fullmatch(_base(word)):
            return f"{program} {_base(word)}"[:LONGEST]
        if not word.startswith("-") or _INLINE.fullmatch(word):
            break
    return program[:LONGEST]


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
