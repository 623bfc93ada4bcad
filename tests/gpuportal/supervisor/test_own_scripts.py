"""Whether `make run` runs own scripts: ids as root, otherwise a stored answer."""

import pytest

from gpuportal.supervisor import own_scripts
from gpuportal.supervisor.own_scripts import OwnScripts, choice


class Terminal:
    """A person who types one answer to each question."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.questions: list[str] = []

    def __call__(self, question: str) -> str:
        self.questions.append(question)
        return self.answer


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Ask as a user who is not root, in a folder that others can enter."""
    folder = tmp_path / "open"
    folder.mkdir()

    def ask(said="ask", *, euid=1000, ask=None, closed=None):
        monkeypatch.setattr(own_scripts.os, "geteuid", lambda: euid)
        monkeypatch.setattr(own_scripts, "closed_folder", lambda _: closed)
        kept = folder / "own-scripts"
        return choice(said, needed=[folder], kept=kept, ask=ask, user="ada")

    return ask


@pytest.mark.parametrize(
    ("answer", "found"),
    [("y", OwnScripts.SHARED), ("YES ", OwnScripts.SHARED), ("", OwnScripts.OFF)],
)
def test_a_person_is_asked_once_and_the_answer_is_kept(asked, answer, found):
    person = Terminal(answer)
    assert asked(ask=person)[0] is found
    assert asked(ask=person)[0] is found
    assert len(person.questions) == 1
    assert "would run as ada" in person.questions[0]


def test_without_a_terminal_nothing_is_allowed_and_the_way_is_told(asked):
    found, line = asked()
    assert found is OwnScripts.OFF
    assert "make run ARGS='--own-scripts yes'" in line and "\n" not in line
    assert asked("yes")[0] is OwnScripts.SHARED
    assert asked()[0] is OwnScripts.SHARED
    assert asked("no")[0] is OwnScripts.OFF
    assert asked()[0] is OwnScripts.OFF


def test_root_asks_only_where_other_users_cannot_reach_the_code(asked, tmp_path):
    person = Terminal("n")
    assert asked(euid=0, ask=person)[0] is OwnScripts.OWN_IDS
    assert not person.questions
    found, line = asked(euid=0, ask=person, closed=tmp_path)
    assert found is OwnScripts.OFF
    assert f"chmod o+x {tmp_path}" in line
    assert len(person.questions) == 1
    assert asked("yes", euid=0, closed=tmp_path)[0] is OwnScripts.SHARED


def test_a_folder_that_others_cannot_enter_is_found_above_too(tmp_path):
    inner = tmp_path / "closed" / "inner"
    inner.mkdir(parents=True, mode=0o755)
    inner.parent.chmod(0o700)
    assert own_scripts.closed_folder([inner]) in (inner.parent, *inner.parents)
    assert own_scripts.closed_folder([]) is None
