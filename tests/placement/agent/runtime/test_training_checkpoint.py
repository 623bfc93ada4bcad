"""A checkpoint takes the name of the one before it."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("exchanges", [True, False], ids=["at once", "NFS"])
def test_the_newest_checkpoint_has_the_name_and_nothing_else_is_left(
    tmp_path, monkeypatch, exchanges
):
    from placement.agent.runtime import training_checkpoint

    monkeypatch.chdir(tmp_path)
    if not exchanges:
        monkeypatch.setattr(training_checkpoint, "RENAME_EXCHANGE", 1 << 9)
    for step in (1, 2, 3):
        draft = Path("checkpoint.part")
        draft.mkdir()
        (draft / "about.json").write_text(str(step))
        training_checkpoint.put_in_place(draft, Path("checkpoint"))

        assert list(Path().iterdir()) == [Path("checkpoint")]
        assert Path("checkpoint/about.json").read_text() == str(step)
