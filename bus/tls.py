"""The files of TLS, for either side of a connection."""

import json
import ssl
from dataclasses import dataclass
from pathlib import Path

from bus.errors import BusRefused


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: the authorities that the other side is held against, and one's own certificate with its key.

    A server with a `ca` asks clients for a certificate too; a client without one trusts what its system trusts. One
    that `pins` trusts the very certificate in `ca`, whatever name it is for.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    pins: bool = False

    def of_own_client(self) -> "TlsFiles":
        """For a client beside the server that has these files."""
        shown = (self.certificate, self.key) if self.ca is not None else (None, None)
        return TlsFiles(self.certificate, *shown, pins=True)

    def client_context(self) -> ssl.SSLContext:
        """What a client checks and shows.

        Raises:
            BusRefused: a file is missing or is not what it should be.
        """
        if (self.certificate is None) != (self.key is None):
            raise BusRefused("bus.tls_cert and bus.tls_key belong together: set both, or neither")
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.pins:
                context.check_hostname = False
                context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # ssl.SSLError is one
            files = ", ".join(str(path) for path in (self.ca, self.certificate, self.key) if path is not None)
            raise BusRefused(f"the files of TLS cannot be used ({error}): {files}") from error
        return context

    def server_lines(self) -> list[str]:
        """The part of a server's configuration.

        Raises:
            BusRefused: a file is missing.
        """
        if self.certificate is None or self.key is None:
            raise BusRefused("a server with TLS needs its certificate and key: --tls-cert and --tls-key")
        for path in (self.ca, self.certificate, self.key):
            if path is not None and not path.is_file():
                raise BusRefused(f"{path} is no file: a server with TLS needs PEM files")
        lines = ["tls {", f"  cert_file: {_quoted(self.certificate)}", f"  key_file: {_quoted(self.key)}"]
        if self.ca is not None:
            lines += [f"  ca_file: {_quoted(self.ca)}", "  verify: true"]
        return [*lines, "}"]


def _quoted(path: Path) -> str:
    return json.dumps(str(path.absolute()))
