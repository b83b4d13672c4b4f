"""TLS: who is trusted gets through, everybody else learns why not, and nothing is said in the clear."""

import dataclasses
import datetime
import ipaddress
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bus.credentials import Keyring
from bus.errors import BusRefused
from bus.jetstream import connect
from bus.permissions import Role
from bus.server import LocalServer
from bus.settings import BusSettings
from bus.subjects import Stream
from bus.tls import TlsFiles

RUN = "project/name"
QUICK = BusSettings(request_timeout_s=2.0, connect_timeout_s=5.0)


class Authority:
    """Signs certificates for a host on loopback."""

    def __init__(self, root: Path, name: str) -> None:
        root.mkdir()
        self._root = root
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.path = root / "ca.pem"
        authority = x509.BasicConstraints(ca=True, path_length=0)
        certificate = self._certificate(self._name, self._key.public_key(), authority)
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, host: str = "127.0.0.1") -> tuple[Path, Path]:
        """A certificate for `host` and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._certificate(subject, key.public_key(), hosts)
        paths = self._root / f"{name}.pem", self._root / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
        return paths

    def _certificate(self, subject: x509.Name, key: Any, extension: x509.ExtensionType) -> x509.Certificate:
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        builder = x509.CertificateBuilder(self._name, subject, key, x509.random_serial_number(), now - day, now + day)
        identity = x509.SubjectKeyIdentifier.from_public_key(key)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        builder = builder.add_extension(identity, critical=False).add_extension(issuer, critical=False)
        return builder.sign(self._key, hashes.SHA256())


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority", "authority of the bus")


@pytest.fixture
async def secure(tmp_path: Path, authority: Authority) -> AsyncIterator[LocalServer]:
    server = LocalServer(tmp_path / "store", tls=TlsFiles(None, *authority.issue("server")))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def mutual(tmp_path: Path, authority: Authority) -> AsyncIterator[LocalServer]:
    """A server that asks for a certificate."""
    server = LocalServer(tmp_path / "store", tls=TlsFiles(authority.path, *authority.issue("server")))
    await server.start()
    yield server
    await server.stop()


def trusting(ca: Path | None, *shown: Path) -> BusSettings:
    return dataclasses.replace(QUICK, tls=TlsFiles(ca, *shown))


async def test_a_trusted_server_carries_messages_and_is_found_again(secure, authority, said, kill, eventually):
    assert secure.url.startswith("tls://")
    bus = await connect(secure.url, RUN, name="m", settings=trusting(authority.path))
    await bus.declare()
    await bus.publish(said.group(0))
    await kill(secure)
    await eventually(lambda: not bus.is_connected)
    await secure.start()
    await bus.publish(said.group(1))
    assert [each.message.task.ordinal async for each in bus.read(Stream.EXPERIENCES, follow=False)] == [0, 1]
    await bus.close()


async def test_a_server_of_another_authority_is_refused_with_what_to_do(secure, tmp_path):
    other = Authority(tmp_path / "other", "somebody else")
    with pytest.raises(BusRefused, match=r"its certificate is not trusted \(.+\): set bus\.tls_ca"):
        await connect(secure.url, RUN, name="m", settings=trusting(other.path))


async def test_without_an_authority_the_systems_are_trusted_and_ours_is_none_of_them(secure):
    for url in (secure.url, secure.url.replace("tls://", "nats://")):
        with pytest.raises(BusRefused, match=r"bus\.tls_ca"):
            await connect(url, RUN, name="m", settings=QUICK)


async def test_a_certificate_for_another_host_is_refused(tmp_path, authority):
    server = LocalServer(tmp_path / "store", tls=TlsFiles(None, *authority.issue("elsewhere", "192.0.2.1")))
    await server.start()
    with pytest.raises(BusRefused, match=r"not valid for '127\.0\.0\.1'"):
        await connect(server.url, RUN, name="m", settings=trusting(authority.path))
    await server.stop()


@pytest.mark.parametrize("asks_by", ["url", "setting"])
async def test_trap_who_asks_for_tls_says_nothing_in_the_clear(server, authority, asks_by):
    """By default the client library talks plainly to a server that does not offer TLS, whatever it was asked for."""
    settings = trusting(authority.path) if asks_by == "setting" else QUICK
    url = server.url.replace("nats://", "tls://") if asks_by == "url" else server.url
    with pytest.raises(BusRefused, match="the server offers no TLS, and this connection asks for it"):
        await connect(url, RUN, name="m", settings=settings)


async def test_a_client_shows_the_certificate_that_the_server_asks_for(mutual, authority, said):
    bus = await connect(mutual.url, RUN, name="m", settings=trusting(authority.path, *authority.issue("client")))
    await bus.declare()
    await bus.publish(said.group(0))
    await bus.close()


async def test_a_client_without_a_certificate_is_refused_with_what_to_do(mutual, authority):
    with pytest.raises(BusRefused, match=r"bus\.tls_cert and bus\.tls_key"):
        await connect(mutual.url, RUN, name="m", settings=trusting(authority.path))


async def test_the_admin_beside_the_server_trusts_its_very_certificate(tmp_path, authority):
    keyring = Keyring(tmp_path / "credentials")
    keyring.ensure(RUN)
    for ca in (None, authority.path):
        files = TlsFiles(ca, *authority.issue("elsewhere", "192.0.2.1"))
        server = LocalServer(tmp_path / "store", accounts_path=keyring.write_accounts(), tls=files)
        await server.start()
        admin = keyring.credentials(RUN, Role.ADMIN)
        own = dataclasses.replace(QUICK, credentials=admin, tls=files.of_own_client())
        bus = await connect(server.url, RUN, name="admin", settings=own)
        await bus.declare()
        await bus.close()
        wrong = dataclasses.replace(own, tls=TlsFiles(authority.issue("server")[0], pins=True))
        with pytest.raises(BusRefused):
            await connect(server.url, RUN, name="admin", settings=wrong)
        await server.stop()


async def test_files_that_cannot_be_used_are_told(tmp_path, authority):
    with pytest.raises(BusRefused, match="belong together"):
        await connect("tls://127.0.0.1:1", RUN, name="m", settings=trusting(None, tmp_path / "c.pem"))
    with pytest.raises(BusRefused, match=r"cannot be used \(.*nothing\.pem"):
        await connect("tls://127.0.0.1:1", RUN, name="m", settings=trusting(tmp_path / "nothing.pem"))
    with pytest.raises(BusRefused, match="--tls-cert and --tls-key"):
        await LocalServer(tmp_path / "store", tls=TlsFiles(authority.path)).start()
    missing = tmp_path / "nothing.pem"
    with pytest.raises(BusRefused, match=r"nothing\.pem is no file"):
        await LocalServer(tmp_path / "store", tls=TlsFiles(None, missing, missing)).start()
