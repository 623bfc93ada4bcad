"""Which hosts are workspaces, which settings are refused, and which environments."""

import pytest

from placement.protocol.launchers import environment_problem
from placement.workspace.rules import (
    OriginInvalid,
    read_origin,
    workspace_environment_problem,
)

LABEL = "a" * 23 + "7"


def test_a_label_has_exactly_one_host():
    origin = read_origin("https://*.ws.gpu.lab:443")
    assert origin.host_of(LABEL) == f"w-{LABEL}.ws.gpu.lab"
    assert origin.origin_of(LABEL) == f"https://w-{LABEL}.ws.gpu.lab"
    assert origin.pattern == "https://*.ws.gpu.lab"
    assert origin.label_of(f"w-{LABEL}.ws.gpu.lab") == LABEL
    for host in (
        f"w-{LABEL}.ws.gpu.lab:443",
        f"w-{LABEL}.ws.gpu.lab.",
        f"W-{LABEL}.ws.gpu.lab",
        f"{LABEL}.ws.gpu.lab",
        f"w-w-{LABEL}.ws.gpu.lab",
        f"w-{LABEL[1:]}.ws.gpu.lab",
        f"x.w-{LABEL}.ws.gpu.lab",
        f"w-{LABEL}\n.ws.gpu.lab",
    ):
        assert origin.label_of(host) is None, host
        assert origin.owns(host), host
    for host in ("gpu.lab", "ws.gpu.lab", "xws.gpu.lab", "[::1]:80", "", "a.ws.gpu.la"):
        assert not origin.owns(host), host
    assert read_origin("") is None
    assert read_origin("http://*.localhost:8010").port == ":8010"


@pytest.mark.parametrize(
    "text",
    (
        "https://ws.gpu.lab",
        "http://*.ws.gpu.lab",
        "https://*.ws.gpu.lab/path",
        "https://*.ws.gpu.lab?x",
        "https://me@*.ws.gpu.lab",
        "https://*.*.lab",
        "https://*.",
        "*.ws.gpu.lab",
        "ftp://*.localhost",
        "https://*.ws.gpu.lab:x",
        "https://*.ws gpu.lab",
    ),
)
def test_other_settings_are_refused(text):
    with pytest.raises(OriginInvalid):
        read_origin(text)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("", ""),
        ("/home/ada/venv", ""),
        ("torch", ""),
        ("/home/ada/torch.sif", ""),
        ("podman:docker.io/lab/torch:2.9", ""),
        ("podman:docker.io/evil/miner", "is not an image that the site allows"),
        ("podman:", "names no image"),
        ("podman:--privileged", "names no image"),
        ("podman:-v/:/host lab", "names no image"),
        ("docker:lab", "must be an absolute path"),
        ("home/torch.sif", "must be an absolute path"),
        ("/home/ada/a:b.sif", "cannot hold a colon"),
    ],
)
def test_an_environment_can_be_an_image(name, told):
    images = ["podman:docker.io/lab/torch:2.9", "/srv/images/lab.sif"]
    why = workspace_environment_problem(name, images)
    assert why.startswith(told) and bool(why) == bool(told), why


def test_a_site_without_images_allows_no_name():
    why = workspace_environment_problem("podman:lab", [])
    assert why == "is an image, and the site allows none"
    assert environment_problem("/a.sif").startswith("cannot be an image here")
