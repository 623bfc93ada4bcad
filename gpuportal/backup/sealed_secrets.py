"""The portal's secrets, encrypted to a key that the operator keeps elsewhere.

The file has the format of age (https://age-encryption.org/v1), so ``age -d -i KEY``
opens it on a machine without a portal. It holds JSON: file name to text.
"""

import json
import os
from pathlib import Path
from typing import TypeAlias

import pyrage

from gpuportal.backup.backup_refusals import BackupKeyWrong, BackupNotMade

Recipient: TypeAlias = pyrage.x25519.Recipient | pyrage.ssh.Recipient


def make_key(path: Path) -> str:
    """Write a new private key, mode 600. Return the public key.

    Raises:
        BackupNotMade: the file exists or cannot be written.
    """
    identity = pyrage.x25519.Identity.generate()
    public = str(identity.to_public())
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise BackupNotMade(f"{path}: {error.strerror}") from error
    with os.fdopen(handle, "w") as file:
        file.write(f"# public key: {public}\n{identity}\n")
    return public


def recipient(text: str) -> Recipient:
    """Parse a public key: ``age1...`` or a line of OpenSSH (ed25519, rsa).

    Raises:
        BackupKeyWrong: it is neither.
    """
    text = text.strip()
    try:
        if text.startswith("ssh-"):
            return pyrage.ssh.Recipient.from_str(text)
        return pyrage.x25519.Recipient.from_str(text)
    except pyrage.RecipientError as error:
        raise BackupKeyWrong(
            "--key is no public key. It begins with age1, ssh-ed25519 or ssh-rsa."
        ) from error


def write_secrets(secrets: dict[str, str], target: Path, key: Recipient) -> None:
    """Encrypt secrets, name to text."""
    target.write_bytes(pyrage.encrypt(json.dumps(secrets).encode(), [key]))


def read_secrets(source: Path, key_file: Path) -> dict[str, str]:
    """Decrypt the secrets with a private key of age or OpenSSH.

    Raises:
        BackupKeyWrong: the file is no private key, or another key is needed.
    """
    try:
        text = key_file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "") or "is no text"
        raise BackupKeyWrong(f"{key_file}: {why}") from error
    try:
        identity: pyrage.x25519.Identity | pyrage.ssh.Identity
        if "PRIVATE KEY" in text:
            identity = pyrage.ssh.Identity.from_buffer(text.encode())
        else:
            lines = [line for line in text.splitlines() if line[:1] not in ("", "#")]
            identity = pyrage.x25519.Identity.from_str("".join(lines))
    except pyrage.IdentityError as error:
        raise BackupKeyWrong(f"{key_file} is no private key.") from error
    try:
        found: dict[str, str] = json.loads(
            pyrage.decrypt(source.read_bytes(), [identity])
        )
    except pyrage.DecryptError as error:
        raise BackupKeyWrong(
            f"{key_file} does not open {source}. Another key was used."
        ) from error
    return found


def put_secrets(secrets: dict[str, str], folder: Path) -> None:
    """Write secrets, mode 600, over those of a site that has no data yet."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in secrets.items():
        if Path(name).name != name:
            raise BackupKeyWrong(f"The secrets name a file outside {folder}.")
        draft = folder / f".{name}.restored"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        draft.replace(folder / name)
