"""Completion in bash, zsh and fish: a small script that asks the client at each Tab."""

import json
import shlex
import threading
import time
from hashlib import sha256

from gpuportal_client.booking_commands import own
from gpuportal_client.instants import clock, span
from gpuportal_client.listing import text
from gpuportal_client.portal_api import Refused
from gpuportal_client.saved_login import KEPT, portal, replaced

FILES, FOLDERS = ":files", ":folders"
"""Kinds of values that the script completes: names of files, or of folders."""
FRESH_SECONDS = 10
PATIENCE_SECONDS = 1.5
"""How long a press of Tab waits for the portal."""
HIDDEN = ("certificate", "tunnel")
"""Commands that only ssh calls."""
KIND_OF = {
    "after": "job",
    "beside": FILES,
    "config": FILES,
    "endpoint": "endpoint",
    "gpu_class": "class",
    "job": "job",
    "model": FILES,
    "node": "node",
    "on": "gpu",
    "plan": "plan",
    "reservation": "reservation",
    "script": FILES,
    "to": FOLDERS,
    "value": FILES,
    ("model-files", "remove"): "file",
    ("notices", "read"): "notice",
    ("offer", "to"): "",
    ("offers", "number"): "offer",
    ("plans", "number"): "plan",
    ("series", "number"): "series",
    ("star", "what"): "gpu",
    ("undo", "reservation"): "any reservation",
    ("usage", "number"): "any reservation",
    ("tokens", "number"): "token",
    ("waitlist", "number"): "request",
    ("workspace", "number"): "workspace",
}
"""Which values an argument has: by its name, or by its command and its name."""

BASH = """\
_gp_complete() {
    local line=${COMP_LINE:0:COMP_POINT} program=${COMP_WORDS[0]/#\\~/$HOME}
    local word=${line##*[[:space:]]} one value
    # bash completes only what follows the last of these characters.
    local kept=${word%"${word##*[:=]}"}
    local -a found=()
    COMPREPLY=()
    while IFS= read -r one; do
        found+=("$one")
    done < <("$program" __complete --line "$line" 2>/dev/null)
    case ${found[0]} in
    :files) compopt -o default 2>/dev/null; return ;;
    :folders) compopt -o dirnames 2>/dev/null; return ;;
    esac
    for one in "${found[@]}"; do
        printf -v value %q "${one%%$'\\t'*}"
        value=${value#"$kept"}
        if ((${#found[@]} > 1)) && [[ $one == *$'\\t'?* ]]; then
            value+="  (${one#*$'\\t'})"
        fi
        COMPREPLY+=("$value")
    done
}
complete -F _gp_complete gp gp.py
"""
ZSH = """\
#compdef gp gp.py
_gp() {
    local one value
    local -a found
    local program=${(Q)words[1]}
    local -a given=("${(@Q)words[2,CURRENT]}")
    for one in "${(@f)$("$program" __complete "${(@)given}" 2>/dev/null)}"; do
        case $one in
        :files) _files; return ;;
        :folders) _files -/; return ;;
        '') continue ;;
        esac
        value=${one%%$'\\t'*}
        found+=("${value//:/\\\\:}:${one#*$'\\t'}")
    done
    (( $#found )) && _describe -V value found
}
if [[ $funcstack[1] == _gp ]]; then
    _gp "$@"
else
    compdef _gp gp gp.py
fi
"""
FISH = """\
function __gp_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program $words[1]
    set -e words[1]
    set -l found ($program __complete $words "$current" 2>/dev/null)
    switch "$found[1]"
        case :files
            __fish_complete_path "$current"
        case :folders
            __fish_complete_directories "$current"
        case '*'
            printf '%s\\n' $found
    end
end
complete -c gp -f -a '(__gp_complete)'
complete -c gp.py -f -a '(__gp_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def completion(args):
    """Print what makes bash, zsh or fish complete commands, options and numbers."""
    print(SCRIPTS[args.shell], end="")


def declare(word):
    """Add the commands of this module."""
    word(completion).add_argument("shell", choices=tuple(SCRIPTS), help="your shell")


def complete(root, given):
    """Print what may stand at the end of a line: a value, a tab and a description.

    Args:
        root: the parser of the client.
        given: the words after the program, or ``--line`` and the whole line.
    """
    words = _words_of(given[1]) if given[:1] == ["--line"] else given
    for value, about in suggestions(root, words or [""]):
        print(f"{value}\t{about}" if about else value)


def _words_of(line):
    """Return the words of a line after the first; the last is being typed."""
    for closing in ("", "'", '"'):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        if not closing and (not line or line[-1].isspace()):
            words.append("")
        return words[1:]
    return [""]


def suggestions(root, words):
    """Return (value, description) of what may stand in place of the last word."""
    *before, current = words
    if "--" in before:
        return [(FILES, "")]
    parser, name, waiting, position, used = root, "", None, 0, set()
    for word in before:
        if waiting is not None:
            waiting = None
        elif word.startswith("-"):
            option, equals, _ = word.partition("=")
            action = _option(parser, option)
            if action is not None:
                used.add(action.dest)
                waiting = action if action.nargs != 0 and not equals else None
        elif parser is root:
            parser, name = root.commands.get(word), word
            if parser is None:
                return []
        else:
            position += 1
    if waiting is not None:
        return _values(name, waiting, current)
    if current.startswith("-"):
        option, equals, value = current.partition("=")
        action = _option(parser, option)
        if not equals or action is None:
            return _options(parser, current, used)
        found = _values(name, action, value)
        return [(f"{option}={one}", about) for one, about in found if one[0] != ":"]
    if parser is root:
        known = {
            one: made.description
            for one, made in root.commands.items()
            if one not in HIDDEN
        }
        return _begins(current, known.items())
    places = [action for action in parser.taken if not action.option_strings]
    if not places:
        return []
    action = places[min(position, len(places) - 1)]
    if position >= len(places) and action.nargs not in ("*", "+"):
        return []
    return _values(name, action, current)


def _option(parser, name):
    return next((one for one in parser.taken if name in one.option_strings), None)


def _options(parser, current, used):
    """Return the long options that are not given yet. Some may be given again."""
    free = [one for one in parser.taken if one.dest not in used or one.default == []]
    return _begins(
        current,
        (
            (name, one.help)
            for one in free
            for name in one.option_strings
            if name.startswith("--")
        ),
    )


def _begins(current, rows):
    found = [(str(value), text(about)) for value, about in rows]
    return [row for row in found if row[0].startswith(current)]


def _values(name, action, current):
    """Return the values of an argument."""
    if action.choices is not None:
        return _begins(current, ((one, "") for one in action.choices))
    kind = KIND_OF.get((name, action.dest), KIND_OF.get(action.dest, ""))
    if kind in (FILES, FOLDERS):
        return [(kind, "")]
    return _begins(current, _known(kind) if kind else [])


def _known(kind):
    """Return the values of a kind, and their descriptions; [] without the portal.

    They are kept for some seconds, also that the portal is away.
    """
    place = KEPT / "completion.json"
    try:
        to = portal()
        whose = sha256(f"{to.url} {to.token}".encode()).hexdigest()
    except Refused:
        return []
    try:
        kept = json.loads(place.read_text())
        if kept["whose"] != whose:
            kept = {"whose": whose}
        known = kept.get(kind, {"at": float("-inf")})
        if 0 <= time.time() - known["at"] < FRESH_SECONDS:
            return [tuple(row) for row in known["rows"]]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        kept = {"whose": whose}
    rows: list = []

    def fetch():
        try:
            rows.extend((str(value), text(about)) for value, about in FETCHED[kind](to))
        except (Refused, OSError, LookupError, TypeError, ValueError):
            # A press of Tab is no place for the reason.
            rows.clear()

    # A name that cannot be resolved may block for long.
    asking = threading.Thread(target=fetch, daemon=True)
    asking.start()
    asking.join(PATIENCE_SECONDS)
    found = [] if asking.is_alive() else rows
    kept[kind] = {"at": time.time(), "rows": found}
    try:
        KEPT.mkdir(parents=True, exist_ok=True)
        replaced(place, json.dumps(kept))
    except OSError:
        return found
    return found


def _described(rows):
    for row in rows:
        yield row["id"], f"{row['state']}, {span(row)} {row['purpose'] or ''}".rstrip()


def _every_reservation(to):
    return _described(own(to))


def _reservations(to):
    """Return those that can still be used or changed."""
    live = ("active", "confirmed")
    return _described(row for row in own(to) if row["state"] in live)


def _jobs(to):
    for row in to.ask("GET", "/jobs", limit=30)["jobs"]:
        yield row["id"], f"{row['state']}, {row['name']}"


def _requests(to):
    for row in to.ask("GET", "/waiting")["requests"]:
        yield row["id"], f"{row['state']}, {row['count']} GPUs for {row['hours']:g} h"


def _offers(to):
    for row in to.ask("GET", "/offers")["offers"]:
        other = f"from {row['from']}" if row["to_me"] else f"to {row['to']}"
        yield row["id"], f"{other}, reservation {row['reservation']}"


def _plans(to):
    return [(one["id"], one["title"]) for one in to.ask("GET", "/plans")["plans"]]


def _series(to):
    return [(one["id"], one["words"]) for one in to.ask("GET", "/series")["series"]]


def _endpoints(to):
    for row in to.ask("GET", "/serve")["endpoints"]:
        yield (
            row["job"],
            f"{row['state']}, {row['name']}, until {clock(row['ends_at'])}",
        )


def _files(to):
    return [(one["id"], one["name"]) for one in to.ask("GET", "/serve/files")["files"]]


def _notices(to):
    found = to.ask("GET", "/notices", unread=True)["notices"]
    return [("all", ""), *((one["id"], one["text"]) for one in found)]


def _nodes(to):
    found = to.ask("GET", "/nodes")["nodes"]
    return [(one["name"], f"{one['gpus']} GPUs") for one in found]


def _gpus(to):
    for row in to.ask("GET", "/gpus")["gpus"]:
        yield f"{row['node']}:{row['index']}", row["gpu_class"] or row["name"]


def _classes(to):
    return sorted({(one["gpu_class"], "") for one in to.ask("GET", "/gpus")["gpus"]})


def _tokens(to):
    for row in to.ask("GET", "/tokens")["tokens"]:
        yield row["id"], f"{row['label']}, until {clock(row['expires'])}"


def _workspaces(to):
    for row in to.ask("GET", "/workspaces")["workspaces"]:
        yield row["id"], f"{row['state']}, {row['title']} on {row['node']}"


FETCHED = {
    "any reservation": _every_reservation,
    "class": _classes,
    "endpoint": _endpoints,
    "file": _files,
    "gpu": _gpus,
    "job": _jobs,
    "node": _nodes,
    "notice": _notices,
    "offer": _offers,
    "plan": _plans,
    "request": _requests,
    "reservation": _reservations,
    "series": _series,
    "token": _tokens,
    "workspace": _workspaces,
}
