"""How a workspace's program is started in a container, and why it is not."""

from dataclasses import replace

import pytest

from placement.agent.access import container_command
from placement.agent.access.container_command import ContainerHost, ContainerRefused
from placement.protocol.container_images import image_of
from tests.placement.agent.test_workspace_host import run_host

pytestmark = pytest.mark.pure
CARD = "GPU-8c6f1b2e"
HOST = ContainerHost(
    find=lambda name: f"/usr/bin/{name}",
    gains_rights=True,
    root=False,
    cdi_text=f"kind: nvidia.com/gpu\ndevices:\n- name: {CARD}\n",
)
ENVIRON = {
    "PATH": "/usr/bin",
    "HOME": "/home/ada",
    "GPUPORTAL_RUN": "mark",
    "JUPYTER_TOKEN": "secret",
    "CUDA_VISIBLE_DEVICES": CARD,
}


def command(environment, host=HOST, environ=ENVIRON, folders=("/tmp/ws-a",)):
    return container_command.container_command(
        image_of(environment),
        ["jupyter-lab", "--no-browser"],
        folders=folders,
        workdir="/home/ada",
        environ=environ,
        host=host,
    )


def test_podman_gets_the_gpus_of_the_reservation_and_no_secret_in_its_words():
    # This command line ran a JupyterLab by hand, without --ipc: podman 4.3.1, crun,
    # rootless.
    assert command("podman:docker.io/lab/torch:2.9") == [
        *("/usr/bin/podman", "run", "--rm", "--cgroups=disabled", "--userns=keep-id"),
        *("--network=host", "--ipc=host", "--log-driver=passthrough"),
        *("--security-opt=label=disable", "--image-volume=ignore"),
        f"--device=nvidia.com/gpu={CARD}",
        "--volume=/tmp/ws-a:/tmp/ws-a",
        *("--env=CUDA_VISIBLE_DEVICES", "--env=GPUPORTAL_RUN", "--env=HOME"),
        *("--env=JUPYTER_TOKEN", "--workdir=/home/ada", "--entrypoint=jupyter-lab"),
        *("docker.io/lab/torch:2.9", "--no-browser"),
    ]
    simulated = command("podman:lab", environ=ENVIRON | {"CUDA_VISIBLE_DEVICES": ""})
    assert not [word for word in simulated if word.startswith("--device")]
    assert "--userns=keep-id" not in command("podman:lab", replace(HOST, root=True))


def test_apptainer_runs_an_image_file_with_the_drivers_libraries(tmp_path):
    image = tmp_path / "torch.sif"
    image.touch()
    wanted = ["exec", "--nv", "--bind=/tmp/ws-a:/tmp/ws-a", "--pwd=/home/ada"]
    wanted += [str(image), "jupyter-lab", "--no-browser"]
    assert command(str(image)) == ["/usr/bin/apptainer", *wanted]
    older = replace(HOST, find={"singularity": "/opt/singularity"}.get)
    assert command(str(image), older) == ["/opt/singularity", *wanted]
    assert "--nv" not in command(str(image), environ={})


@pytest.mark.parametrize(
    ("environment", "changes", "told"),
    [
        (
            "podman:lab",
            {"find": lambda _: None},
            "podman is not installed on this node",
        ),
        ("/a.sif", {"find": lambda _: None}, "apptainer is not installed on this node"),
        ("podman:lab", {"gains_rights": False}, "Use an image file for apptainer."),
        ("podman:lab", {"cdi_text": ""}, f"cannot give {CARD} to a container here"),
        ("/home/ada/none.sif", {}, "There is no image file /home/ada/none.sif"),
        ("/home/ada/a,b.sif", {}, "its name has a colon or comma"),
    ],
)
def test_a_node_that_cannot_run_it_says_why(environment, changes, told):
    with pytest.raises(ContainerRefused, match=told.replace(".", r"\.")):
        command(environment, replace(HOST, **changes))


@pytest.mark.parametrize("folder", ["/home/ada/a:b", "/home/ada/a,ro"])
def test_a_folder_cannot_change_how_it_is_shown(folder):
    for environment in ("podman:lab", "/a.sif"):
        with pytest.raises(ContainerRefused, match="colon or comma"):
            command(environment, folders=(folder,))


def test_only_files_about_gpus_count(tmp_path, monkeypatch):
    monkeypatch.setattr(container_command, "CDI_FOLDERS", (tmp_path, tmp_path / "none"))
    (tmp_path / "a.yaml").write_text("kind: intel.com/gpu\n")
    assert container_command.container_host().cdi_text == ""
    (tmp_path / "b.json").write_text('{"kind": "nvidia.com/gpu"}')
    assert "nvidia.com/gpu" in container_command.container_host().cdi_text


@pytest.mark.parametrize(
    ("status", "told"), [(127, "python3 -m pip install jupyterlab\n"), (1, "")]
)
def test_an_image_without_jupyter_names_the_command_that_installs_it(
    tmp_path, status, told
):
    """A program stands for apptainer: what is tested is the end of the job."""
    inner, image = tmp_path / "bin", tmp_path / "lab.sif"
    inner.mkdir()
    image.touch()
    program = inner / "apptainer"
    program.write_text(f'#!/bin/sh\necho "$@"\nexit {255 if status == 127 else 1}\n')
    program.chmod(0o755)
    done = run_host(
        tmp_path, "/usr/bin:/bin", image=str(image), system=f"{inner}:/usr/bin:/bin"
    )
    assert done.returncode == (255 if status == 127 else 1), done.stderr
    assert done.stderr.endswith(told) and bool(done.stderr) == bool(told)
    assert f"{image} jupyter-lab --no-browser --ServerApp.sock=" in done.stdout
