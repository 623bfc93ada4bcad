"""The reference of docs/client.md, made of the client's parser.

    .venv/bin/python -m tests.gpuportal.client.client_page

writes it after the line that says so.
"""

import sys
from pathlib import Path

from gpuportal.pages import client_files

PAGE = Path(__file__).resolve().parents[3] / "docs" / "client.md"
MARK = "<!-- Written by tests/gpuportal/client/client_page.py -->\n"
TITLES = {
    "saved_login": "Sign in",
    "board_commands": "Board, standing and notices",
    "booking_commands": "Reservations",
    "sharing_commands": "Waitlist, co-users and offers",
    "job_commands": "Jobs",
    "model_commands": "Plans and served models",
    "ssh_commands": "ssh",
    "ssh_tunnel": "ssh",
    "workspace_commands": "Programs in the browser, and tokens",
    "completion": "Completion",
}


def reference() -> str:
    """Return the tables of all commands, their arguments and options."""
    sys.path.insert(0, str(client_files.PROJECT))
    try:
        from gpuportal_client.command_line import parser
    finally:
        sys.path.pop(0)
    names: dict[object, list[str]] = {}
    commands = parser().commands
    for name, one in commands.items():
        names.setdefault(one, []).append(name)
    rooms: dict[str, list[str]] = {title: [] for title in TITLES.values()}
    for one, known in names.items():
        room = TITLES[one.get_default("act").__module__.rpartition(".")[2]]
        rooms[room].append(_row(known, one))
    head = "| command | what it does | options |\n| --- | --- | --- |\n"
    return "\n".join(
        f"### {title}\n\n{head}{''.join(rows)}" for title, rows in rooms.items()
    )


def _row(names, one) -> str:  # type: ignore[no-untyped-def]
    places = [_place(action) for action in one.taken if not action.option_strings]
    also = "".join(f", or `gp {name}`" for name in names[1:])
    command = f"`{' '.join(['gp', names[0], *places])}`{also}"
    options = [
        f"`{' '.join([action.option_strings[-1], *_value(action)])}` {_help(action)}"
        for action in one.taken
        if action.option_strings and action.dest != "help"
    ]
    cells = (command, one.description, "<br>".join(options))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _help(action) -> str:  # type: ignore[no-untyped-def]
    return f"{action.help} (needed)" if action.required else str(action.help)


def _place(action) -> str:  # type: ignore[no-untyped-def]
    shown = "|".join(action.choices or ()) or action.dest.upper()
    if action.nargs in ("?", "*"):
        return f"[{shown}]"
    return f"{shown} ..." if action.nargs == "+" else shown


def _value(action) -> list[str]:  # type: ignore[no-untyped-def]
    if action.nargs == 0:
        return []
    if action.choices:
        return ["|".join(action.choices)]
    return [action.metavar or action.dest.upper()]


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(text[: text.index(MARK) + len(MARK)] + "\n" + reference())
