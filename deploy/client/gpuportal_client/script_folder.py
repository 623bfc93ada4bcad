"""The files in a script's folder that go with it to the node.

They are the local modules that the script imports, found without running it, and what
the user names. Nothing else is sent. The user reads what is sent and what is not.
"""

import ast
import os
import re
import subprocess
from pathlib import Path

from gpuportal_client.listing import text as shown
from gpuportal_client.portal_api import Refused

MOST_FILES = 200
MOST_BYTES = 2**20
"""The portal's limits."""
PATH_PART = re.compile(r"\w[\w.+-]{0,99}")
"""Names that the portal accepts: no dot, space or dash comes first."""
REQUIREMENTS = (".txt", ".in")
INCLUDE = re.compile(r"\s*(?:-r|-c|--requirement|--constraint)[\s=]*([^\s#]+)")
"""A line of a requirements file that names another one."""
WORD = re.compile(r"[\w./+-]+")
GIT_SECONDS = 10
MOST_NAMED = 10
ELSEWHERE = "lies in the current folder, not beside the script. Install it in --env"
ADVICE = "Clone the code on the node (gp ssh), or install it in the environment (--env)"


class ScriptFolder:
    """The files of a script's folder that are sent, and those that are left out."""

    def __init__(self, script):
        """Take the script. Python looks for modules in the folder of the real file."""
        script = script.resolve()
        self.root, self.name = script.parent, script.name
        self.files = {}
        """Texts by path, with slashes, relative to the folder."""
        self.left_out = {}
        """Reasons by path."""
        self._chosen, self._words = set(), set()

    def add_imports(self, code, package=()):
        """Add the modules that Python code imports, and those that they import.

        ``package``: the folders of the code, for relative imports.

        Raises:
            Refused: a module is not text, or too many are imported.
        """
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError):
            return  # Python on the node says what is wrong.
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._words.add(node.value)
        for module in sorted(imported(tree, package)):
            for end in range(1, len(module) + 1):
                place = "/".join(module[:end])
                for path in (f"{place}/__init__.py", f"{place}.py"):
                    if path not in self.files and self._may_be_sent(path):
                        self._read(path)
                        self.add_imports(self.files[path], tuple(path.split("/")[:-1]))
            self._note_elsewhere(module[0])

    def add_words(self, words):
        """Note words that may name files: those of a shell script, or arguments."""
        for word in words:
            self._words |= {word, word.partition("=")[2]}

    def add(self, path):
        """Add a file that the user names, or the text files in a folder.

        Raises:
            Refused: it is not in the script's folder, not text, or too large.
        """
        try:
            name = path.parent.resolve().joinpath(path.name).relative_to(self.root)
        except ValueError:
            raise Refused(f"{path} is not in the folder {self.root}", 2) from None
        if not path.is_dir():
            one = name.as_posix()
            if not self._may_be_sent(one):
                why = self.left_out.get(one, "there is no such file")
                raise Refused(f"{path}: {why}", 2)
            self._chosen.add(one)
            self._read(one)
            return
        # os.walk follows no link to a folder.
        for folder, inner, names in os.walk(self.root / name):
            inner[:] = [one for one in inner if not one.startswith((".", "__"))]
            for each in names:
                one = (Path(folder) / each).relative_to(self.root).as_posix()
                if each.startswith(".") or not self._may_be_sent(one):
                    continue
                try:
                    self._read(one)
                except UnicodeError:
                    self.left_out[one] = "is not text"

    def add_requirements(self, path):
        """Add a requirements file and those that it includes. Return its name there.

        Outside of the script's folder they are sent as if they lay beside the script.

        Raises:
            Refused: one of them cannot be sent.
        """
        top = path.parent.resolve()
        inside = top == self.root or self.root in top.parents
        base = top.relative_to(self.root) if inside else Path()
        waiting = [Path(path.name)]
        while waiting:
            name = waiting.pop()
            one = (base / name).as_posix()
            if one not in self._chosen:
                self._chosen.add(one)
                self._read_requirements(top / name, one)
                lines = self.files[one].splitlines()
                named = [found[1] for line in lines if (found := INCLUDE.match(line))]
                waiting += [name.parent / word for word in named if "://" not in word]
        return f"./{(base / path.name).as_posix()}"

    def _read_requirements(self, place, name):
        """Read a requirements file that gets a name beside the script."""
        here = self.root / name
        if not is_file(place):
            why = "there is no such file"
        elif not all(PATH_PART.fullmatch(part) for part in name.split("/")):
            why = "has a path that the portal does not take"
        elif place.stat().st_size > MOST_BYTES:
            why = "is larger than 1 MiB"
        elif is_file(here) and not here.samefile(place):
            why = f"{here} has the same name"
        else:
            try:
                self.files[name] = place.read_text(encoding="utf-8")
                return
            except UnicodeDecodeError:
                why = "is not text in UTF-8"
        raise Refused(f"--env: {place}: {why}", 2)

    def finish(self):
        """Leave out what Git ignores. Return what the user reads before the upload.

        Raises:
            Refused: more than the portal takes.
        """
        for path, why in self._ignored().items():
            del self.files[path]
            self.left_out[path] = why
        sizes = {path: len(text.encode()) for path, text in self.files.items()}
        total = sum(sizes.values())
        if len(sizes) > MOST_FILES or total > MOST_BYTES:
            large = ", ".join(sorted(sizes, key=sizes.__getitem__)[:-4:-1])
            raise Refused(
                f"{len(sizes)} files of {total / 2**20:.1f} MiB belong to {self.name}, "
                f"and the portal takes {MOST_FILES} and 1 MiB (the largest: {large}). "
                f"{ADVICE}, and send the script --alone",
                2,
            )
        lines = []
        if sizes:
            names = ", ".join(map(shown, sorted(sizes)))
            lines = [f"sent with {self.name}: {names} ({total / 1024:.1f} KiB)"]
        known = {self.name, *self.files, *self.left_out}
        named = sorted({os.path.normpath(one) for one in self._words if one} - known)
        for one in [one for one in named if self._is_there(one)][:MOST_NAMED]:
            self.left_out[one] = f"is named in the code: --beside {one} sends it"
        rows = sorted(self.left_out.items())
        return lines + [f"not sent: {shown(path)} {shown(why)}" for path, why in rows]

    def _is_there(self, word):
        inside = not word.startswith(("..", "/", "."))
        return inside and is_file(self.root / word)

    def _may_be_sent(self, path):
        """Return whether a file may be sent. If not, and it is there: note why."""
        place = self.root / path
        if not is_file(place):
            return False
        if self.root not in place.resolve().parents:
            self.left_out[path] = "is a link out of the folder"
        elif not all(PATH_PART.fullmatch(part) for part in path.split("/")):
            self.left_out[path] = "has a name that the portal does not take"
        elif place.stat().st_size > MOST_BYTES:
            self.left_out[path] = f"is larger than 1 MiB. {ADVICE}"
        else:
            return True
        return False

    def _read(self, path):
        if len(self.files) > MOST_FILES:
            raise Refused(f"more than {MOST_FILES} files belong to it. {ADVICE}", 2)
        try:
            self.files[path] = (self.root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            if path in self._chosen or path.endswith(".py"):
                raise Refused(f"{path} is not text in UTF-8", 2) from None
            raise

    def _note_elsewhere(self, name):
        if not is_module(self.root / name) and is_module(Path.cwd() / name):
            self.left_out[name] = ELSEWHERE

    def _ignored(self):
        """Return the modules that .gitignore names, which may hold passwords."""
        found = [path for path in self.files if path not in self._chosen]
        if not found:
            return {}
        command = ["git", "-C", str(self.root), "check-ignore", "-z", "--stdin"]
        try:
            done = subprocess.run(
                command,
                input="\0".join(found).encode(),
                capture_output=True,
                timeout=GIT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            done = None
        if done is not None and done.returncode in (0, 1):
            names = set(done.stdout.decode().split("\0"))
            why = "is ignored by Git"
        elif (self.root / ".gitignore").exists():
            names, why = set(found), "may be ignored: Git cannot read .gitignore here"
        else:
            return {}
        return {one: f"{why}: --beside {one} sends it" for one in found if one in names}


def is_module(path):
    """Return whether there is a module or a package of that path."""
    return is_file(path.with_name(f"{path.name}.py")) or is_file(path / "__init__.py")


def is_file(path):
    """Return whether there is a file of that path, which may be any text."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or with a NUL
        return False


def imported(tree, package):
    """Return the modules that code imports, as tuples of names.

    >>> sorted(imported(ast.parse("from .net import a; import os.path"), ("m",)))
    [('m', 'net', 'a'), ('os', 'path')]
    """
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {tuple(one.name.split(".")) for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            if node.level > len(package):
                continue  # It is outside of every package.
            base = (*above, *(node.module.split(".") if node.module else ()))
            found |= {(*base, one.name) for one in node.names if one.name != "*"}
            found |= {base} if base else set()
    return found
