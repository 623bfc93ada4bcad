"""A real OpenLDAP server on loopback, with TLS by an authority that nobody knows."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import ldap
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from reservations.accounts.identities.directory_settings import Directory

SUFFIX = "dc=example,dc=org"
PEOPLE, GROUPS = f"ou=people,{SUFFIX}", f"ou=groups,{SUFFIX}"
SERVICE, SERVICE_PASSWORD = f"cn=portal,{SUFFIX}", "service password"
POLICY = f"cn=policy,{SUFFIX}"
ROOT_DN, ROOT_PASSWORD = f"cn=root,{SUFFIX}", "root password"
PASSWORD = "correct horse"
Entry = tuple[str, dict[str, list[bytes]]]
SLAPD = shutil.which("slapd") or "/usr/sbin/slapd"
CONFIGURATION = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
include /etc/ldap/schema/nis.schema
modulepath /usr/lib/ldap
moduleload back_mdb
moduleload memberof
moduleload ppolicy
pidfile {folder}/pid
TLSCACertificateFile {folder}/ca.pem
TLSCertificateFile {folder}/server.pem
TLSCertificateKeyFile {folder}/server.key
# As lenient as a server can be: a bind without a password succeeds as nobody.
allow bind_anon_cred bind_anon_dn
database mdb
suffix "{suffix}"
rootdn "{root}"
rootpw "{password}"
directory {folder}/data
maxsize 16777216
dbnosync
access to attrs=userPassword by anonymous auth by * none
access to * by dn.base="{service}" read by self read by * none
overlay memberof
overlay ppolicy
ppolicy_default "{policy}"
"""


def _entry(name: str, **attributes: str | Sequence[str]) -> Entry:
    return name, {
        key: [one.encode() for one in ([values] if isinstance(values, str) else values)]
        for key, values in attributes.items()
    }


def person(uid: str, password: str = PASSWORD, **more: str) -> Entry:
    """Return the entry of a person."""
    values = {"cn": uid.title(), "sn": uid, "mail": f"{uid}@example.org", **more}
    unix = ("posixAccount",) if "uidNumber" in more else ()
    return _entry(
        f"uid={uid},{PEOPLE}",
        objectClass=["inetOrgPerson", *unix],
        uid=uid,
        userPassword=password,
        **values,
    )


def group(name: str, *uids: str, base: str = GROUPS) -> Entry:
    """Return the entry of a group."""
    members = [f"uid={uid},{PEOPLE}" for uid in uids]
    return _entry(f"cn={name},{base}", objectClass="groupOfNames", member=members)


TREE = (
    _entry(SUFFIX, objectClass=["dcObject", "organization"], o="Example"),
    _entry(PEOPLE, objectClass="organizationalUnit"),
    _entry(GROUPS, objectClass="organizationalUnit"),
    _entry(f"ou=vision,{GROUPS}", objectClass="organizationalUnit"),
    _entry(f"ou=clubs,{SUFFIX}", objectClass="organizationalUnit"),
    _entry(
        SERVICE,
        objectClass=["organizationalRole", "simpleSecurityObject"],
        userPassword=SERVICE_PASSWORD,
    ),
    _entry(
        POLICY,
        objectClass=["organizationalRole", "pwdPolicy"],
        pwdAttribute="userPassword",
        pwdLockout="TRUE",
    ),
    person("mia", uidNumber="2718", gidNumber="100", homeDirectory="/home/mia"),
    person("tom"),
    person("zoë", mail="zoe@example.org"),
    person("twin", mail="both@example.org"),
    person("twin2", mail="both@example.org"),
    group("GPU", "mia", "tom"),
    group("deep", "mia", base=f"ou=vision,{GROUPS}"),
    # Anybody may found a club. Its name must give nothing.
    group("admins", "mia", base=f"ou=clubs,{SUFFIX}"),
)


@dataclass
class SlapdSite:
    """The server, and the portal's settings of it."""

    folder: Path
    port: int
    tls_port: int

    def directory(self, **more: Any) -> Directory:
        """Return the settings of a search with the site's account, over ldaps."""
        values = {
            "name": "Uni Example",
            "urls": (f"ldaps://127.0.0.1:{self.tls_port}",),
            "tls": "ldaps",
            "ca_file": str(self.folder / "ca.pem"),
            "bind_dn": SERVICE,
            "bind_password": SERVICE_PASSWORD,
            "base": PEOPLE,
            "group_base": GROUPS,
            "sign_up": "all",
        }
        return Directory(**values | more)

    @property
    def plain_url(self) -> str:
        """The address without TLS, which also takes StartTLS."""
        return f"ldap://127.0.0.1:{self.port}"

    @contextmanager
    def _root(self) -> Iterator[Any]:
        """Bind as the directory's own admin."""
        connection = ldap.initialize(f"ldap://127.0.0.1:{self.port}")
        connection.simple_bind_s(ROOT_DN, ROOT_PASSWORD)
        try:
            yield connection
        finally:
            connection.unbind_s()

    def set(self, uid: str, attribute: str, value: str) -> None:
        """Replace an attribute of a person."""
        change = (ldap.MOD_REPLACE, attribute, [value.encode()])
        with self._root() as root:
            root.modify_s(f"uid={uid},{PEOPLE}", [change])

    def rename(self, uid: str, new: str) -> None:
        """Give a person another user name."""
        with self._root() as root:
            root.rename_s(f"uid={uid},{PEOPLE}", f"uid={new}")

    def add(self, *entries: Entry) -> None:
        """Add entries."""
        with self._root() as root:
            for name, attributes in entries:
                root.add_s(name, list(attributes.items()))

    def remove(self, name: str) -> None:
        """Remove an entry."""
        with self._root() as root:
            root.delete_s(name)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def certificates(folder: Path) -> None:
    """Write an authority, and a certificate by it for 127.0.0.1 and no other host."""
    now = datetime.now(UTC)
    made: dict[str, Any] = {}
    for name in ("ca", "server"):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} test")])
        issuer, signer = made.get("ca", (subject, key))
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(name == "ca", None), critical=True)
        )
        if name == "server":
            builder = builder.add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]),
                critical=False,
            )
        made[name] = (subject, key)
        found = builder.sign(signer, hashes.SHA256())
        (folder / f"{name}.pem").write_bytes(
            found.public_bytes(serialization.Encoding.PEM)
        )
        (folder / f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )


@contextmanager
def slapd_site(folder: Path) -> Iterator[SlapdSite]:
    """Run the server with `TREE` in it."""
    certificates(folder)
    (folder / "data").mkdir()
    (folder / "slapd.conf").write_text(
        CONFIGURATION.format(
            folder=folder,
            suffix=SUFFIX,
            root=ROOT_DN,
            password=ROOT_PASSWORD,
            service=SERVICE,
            policy=POLICY,
        )
    )
    site = SlapdSite(folder, _free_port(), _free_port())
    log = (folder / "log").open("wb")
    server = subprocess.Popen(
        [
            *(SLAPD, "-d", "0", "-f", str(folder / "slapd.conf"), "-h"),
            f"ldap://127.0.0.1:{site.port} ldaps://127.0.0.1:{site.tls_port} "
            f"ldap://127.0.0.2:{site.port} ldaps://127.0.0.2:{site.tls_port}",
        ],
        stdout=log,
        stderr=log,
    )
    try:
        _wait_for(site, server)
        site.add(*TREE)
        yield site
    finally:
        server.terminate()
        server.wait(60)
        log.close()


def _wait_for(site: SlapdSite, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and server.poll() is None:
        try:
            for port in (site.port, site.tls_port):
                socket.create_connection(("127.0.0.1", port), 5).close()
        except OSError:
            time.sleep(0.02)
            continue
        return
    raise RuntimeError(f"slapd: {(site.folder / 'log').read_text()}")
