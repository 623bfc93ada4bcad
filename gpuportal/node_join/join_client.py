"""The machine's side of joining: `python -m gpuportal.node_join.join_client`.

`deploy/join.sh` calls it once the portal's code is installed. It sends the request,
signed with the machine's key that the script made. It checks the answer against the pin
of the token before it reads anything in it, and writes a bundle for `deploy/join`. No
Django here.
"""

import argparse
import base64
import io
import json
import os
import platform
import secrets
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
)

from gpuportal.node_settings import NodeSettings
from placement.agent.token_renewal import KEY_FILE, machine_key
from placement.protocol.join_messages import (
    ANSWER,
    MOST_ANSWER_BYTES,
    JoinAnswer,
    JoinRequest,
    JoinUntrusted,
    SeenGpu,
    TokenParts,
    machine_sum,
    opened,
    read_token,
    signed_request,
)
from telemetry.agent.probe import machine
from telemetry.agent.process_owners import boot_id
from telemetry.paths import BASE_DIR
from telemetry.protocol.codec import decode
from telemetry.protocol.coded_error import EXIT_REFUSED, one_line
from telemetry.protocol.errors import ProbeUnavailable
from telemetry.protocol.node_proof import public_key_of

MACHINE_ID = Path("/etc/machine-id")
EXAMPLE = BASE_DIR / "deploy" / "node.env.example"
SECONDS = 60.0


class JoinFailed(Exception):
    """The machine did not join. The text is one line for an operator."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Join, and print `ready`, or `wait` if an operator must add the broker's user.

    The token comes from the standard input, so that it is no argument of this process.
    """
    parser = argparse.ArgumentParser(prog="join")
    parser.add_argument("--portal", required=True, help="address of the portal")
    parser.add_argument("--settings", required=True, type=Path)
    parser.add_argument("--write", required=True, type=Path, help="the bundle")
    parser.add_argument("--ca", type=Path, help="authority of the portal (PEM)")
    options = parser.parse_args(arguments)
    try:
        token = read_token(sys.stdin.readline())
        if token is None:
            raise JoinFailed("this is no join token")
        key = machine_key(options.settings / KEY_FILE)
        request = request_of(key)
        text = send(options.portal, token, signed_request(request, key))
        values = opened(text, kind=ANSWER, pin=token.pin, nonce=request.nonce)
        answer = decode(JoinAnswer, values["answer"], most_bytes=MOST_ANSWER_BYTES)
        ca = answer.ca_pem or (options.ca.read_text() if options.ca else "")
        write_bundle(
            options.write, answer=answer, key_der=base64.b64decode(values["key"]), ca=ca
        )
    except (JoinFailed, JoinUntrusted, ValueError, OSError) as error:
        print(f"join: {one_line(str(error))}", file=sys.stderr)
        return EXIT_REFUSED
    print("ready" if answer.broker_ready else "wait")
    return 0


def request_of(key: Ed25519PrivateKey) -> JoinRequest:
    """Return what this machine says about itself."""
    gpus, driver, no_gpus = _gpus()
    try:
        machine_id = MACHINE_ID.read_text().strip()
    except OSError:
        machine_id = ""
    if not machine_id:
        raise JoinFailed(f"{MACHINE_ID} is missing: type systemd-machine-id-setup")
    return JoinRequest(
        nonce=secrets.token_hex(16),
        public_key=public_key_of(key),
        machine_hash=machine_sum(machine_id),
        boot_id=boot_id()[:40],
        hostname=platform.node()[:120],
        gpus=gpus,
        no_gpus=no_gpus[:200],
        driver=driver[:120],
        kernel=platform.release()[:120],
        python=platform.python_version(),
        torch=_version("torch"),
    )


def send(portal: str, token: TokenParts, body: bytes) -> str:
    """Send the request. Return the signed answer.

    Raises:
        JoinFailed: the portal refuses, or cannot be reached.
    """
    wanted = urllib.request.Request(
        f"{portal}/join/v1/node",
        data=body,
        headers={
            "Authorization": token.credential(),
            "Content-Type": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(wanted, timeout=SECONDS) as answer:
            return str(answer.read(2 * MOST_ANSWER_BYTES).decode())
    except urllib.error.HTTPError as error:
        with error:
            raise JoinFailed(_refusal(error)) from error
    except (OSError, HTTPException, UnicodeDecodeError) as error:
        raise JoinFailed(f"{portal} cannot be reached: {error}") from error


def _refusal(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(10_000))["detail"])
    except (ValueError, KeyError, TypeError):
        return f"the portal answered {error.code}"


def write_bundle(path: Path, *, answer: JoinAnswer, key_der: bytes, ca: str) -> None:
    """Write what `deploy/join` installs, as `deploy/enroll` does.

    Raises:
        NodeSettingsError: the answer does not give valid settings.
    """
    given = {
        "GPUPORTAL_NODE": answer.node,
        "GPUPORTAL_NODE_REDIS_URL": answer.broker_url,
        "GPUPORTAL_WEB_URL": answer.web_url,
    }
    if answer.broker_plain:
        given["GPUPORTAL_BROKER_PLAIN"] = "1"
    lines = [
        line
        for line in EXAMPLE.read_text().splitlines()
        if line.partition("=")[0] not in given
    ]
    lines += [f"{name}={value}" for name, value in given.items()]
    NodeSettings.from_env(
        dict(line.split("=", 1) for line in lines if line[:1].isupper())
    )
    files = {
        "node.token": answer.token,
        "order_key.pub": load_der_public_key(key_der)
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        .decode(),
    }
    if answer.broker_ca_pem:
        files["broker-ca.pem"] = answer.broker_ca_pem
        lines.append("GPUPORTAL_BROKER_CA_FILE=/etc/gpuportal/broker-ca.pem")
    if ca:
        files["ca.pem"] = ca
    files["node.env"] = "\n".join([*lines, ""])
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text.encode()), 0o600
            tar.addfile(member, io.BytesIO(text.encode()))


def _gpus() -> tuple[tuple[SeenGpu, ...], str, str]:
    try:
        machine.start()
    except ProbeUnavailable as error:
        return (), "", error.why
    try:
        cards, _lost = machine.find_cards()
        seen = tuple(
            SeenGpu(
                name=card.info.name[:120],
                uuid=card.info.uuid[:80],
                memory_bytes=card.info.memory_total_bytes,
            )
            for card in cards
        )
        return seen[:64], machine.driver_version(), ""
    except ProbeUnavailable as error:
        return (), "", error.why
    finally:
        machine.stop()


def _version(package: str) -> str:
    try:
        return version(package).partition("+")[0][:120]
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
