"""An environment by its folder, its bin, its project or its conda name."""

import os

import pytest

from placement.agent.process import named_environment
from placement.agent.process.named_environment import NotBuilt, program_folder
from placement.agent.process.program_lookup import checked_argv


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setattr(named_environment, "home_folder", lambda: folder)
    monkeypatch.setattr(named_environment, "SYSTEM_ROOTS", (tmp_path / "opt/conda",))
    return folder


def environment(folder, sign):
    """Make what counts as an environment; return its bin."""
    inner = folder / "bin"
    inner.mkdir(parents=True)
    if sign == "pyvenv.cfg":
        (folder / sign).touch()
    elif sign:
        (folder / sign).mkdir()
    python = inner / "python"
    python.write_text("")
    python.chmod(0o755)
    return str(inner)


def test_a_folder_its_bin_and_a_project_name_the_same_environment(tmp_path):
    project = tmp_path / "thesis"
    inner = environment(project / ".venv", "pyvenv.cfg")
    (project / "bin").mkdir()  # a project's own scripts
    assert program_folder("") == ""
    for named in (project, project / ".venv", inner):
        assert program_folder(str(named)) == inner, named
    plain = environment(tmp_path / "plain", "")
    assert program_folder(str(tmp_path / "plain")) == plain
    (tmp_path / "empty").mkdir()
    assert program_folder(str(tmp_path / "empty")) == str(tmp_path / "empty")


def test_a_conda_environment_is_found_by_its_name(home, tmp_path):
    own = environment(home / "miniforge3/envs/torch", "conda-meta")
    base = environment(home / "miniforge3", "conda-meta")
    shared = environment(tmp_path / "opt/conda/envs/lab", "conda-meta")
    elsewhere = environment(tmp_path / "scratch/vision", "conda-meta")
    (home / ".conda").mkdir()
    lines = [tmp_path / "gone/torch", tmp_path / "scratch/vision", "relative/vision"]
    listed = home / ".conda/environments.txt"
    listed.write_bytes("\n".join(map(str, lines)).encode() + b"\n\xff\n/a\0b/vision\n")
    assert [program_folder(name) for name in ("torch", "base", "lab", "vision")] == [
        own,
        base,
        shared,
        elsewhere,
    ]
    (home / "miniconda3/envs/half").mkdir(parents=True)  # conda did not finish it
    with pytest.raises(FileNotFoundError, match="conda create -n half python"):
        program_folder("half")


def test_a_list_that_is_a_pipe_or_a_folder_holds_nothing_up(home):
    (home / ".conda").mkdir()
    listed = home / ".conda/environments.txt"
    os.mkfifo(listed)
    with pytest.raises(FileNotFoundError, match="no conda environment torch"):
        program_folder("torch")
    listed.unlink()
    listed.mkdir()
    with pytest.raises(FileNotFoundError):
        program_folder("torch")


def test_a_user_without_a_home_has_the_systems_environments(home, monkeypatch):
    monkeypatch.setattr(named_environment, "home_folder", lambda: None)
    with pytest.raises(FileNotFoundError, match="your user has no home here"):
        program_folder("torch")


def test_the_reason_says_which_command_helps(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"python3 -m venv {tmp_path}/none"):
        program_folder(f"{tmp_path}/none")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("torch\n")
    with pytest.raises(NotBuilt, match=f"install -r {requirements}") as missing:
        program_folder(str(requirements))
    assert missing.value.source == requirements
    other = requirements.rename(tmp_path / "script.sh")
    with pytest.raises(NotADirectoryError, match=f"{other} is a file"):
        program_folder(str(other))
    (tmp_path / "pyproject.toml").touch()
    with pytest.raises(FileNotFoundError, match=f"cd {tmp_path} && uv sync") as missing:
        program_folder(str(tmp_path))
    assert not isinstance(missing.value, NotBuilt)
    (tmp_path / "uv.lock").touch()
    with pytest.raises(NotBuilt, match=f"cd {tmp_path} && uv sync"):
        program_folder(str(tmp_path))
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(FileNotFoundError):
        program_folder(f"{tmp_path}/loop")
    with pytest.raises(FileNotFoundError):
        program_folder("/" + "a" * 299)


def test_an_environment_that_everybody_may_write_is_not_used(home):
    inner = environment(home / "miniconda3/envs/open", "conda-meta")
    (home / "miniconda3/envs").chmod(0o777)
    with pytest.raises(PermissionError, match="everybody may write"):
        checked_argv(["python"], ("python",), program_folder("open"))
    assert program_folder("open") == inner
