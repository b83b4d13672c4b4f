"""Credentials: one NKey for each role of each run, made once, in files that only their owner may read.

A file names its run and role above the seed, so that a service knows whom it speaks for before it connects. The server
is told the public keys alone.
"""

import json
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from bus.errors import BusRefused
from bus.permissions import Role, inbox_prefix, permissions
from bus.subjects import bucket_name, token

log = structlog.get_logger()

SUFFIX = ".nk"
ACCOUNTS_FILE = "accounts.conf"
_TEXT = "# Credentials for a trinity bus: whoever has this file may speak for this role. Keep it secret.\n"


@dataclass(frozen=True)
class Credentials:
    """Who a connection speaks for."""

    run: str
    role: Role
    seed: str = field(repr=False)

    @property
    def inbox_prefix(self) -> str:
        return inbox_prefix(self.role)

    @property
    def public_key(self) -> str:
        from nkeys import from_seed

        key: bytes = from_seed(bytearray(self.seed.encode())).public_key
        return key.decode()

    @property
    def is_whole(self) -> bool:
        """Whether the seed is one. It carries a checksum."""
        from nkeys import NkeysError

        try:
            return bool(self.public_key)
        except (NkeysError, ValueError):
            return False

    def text(self) -> str:
        """The file that holds them. The `nats` command takes it too (`--nkey`)."""
        return f"{_TEXT}# run: {json.dumps(self.run)}\n# role: {self.role}\n{self.seed}\n"


def new_credentials(run: str, role: Role) -> Credentials:
    from nkeys import PREFIX_BYTE_USER, encode_seed

    seed: bytes = encode_seed(os.urandom(32), PREFIX_BYTE_USER)
    return Credentials(run, role, seed.decode())


def read_credentials(path: Path) -> Credentials:
    """The credentials in a file.

    Raises:
        BusRefused: it is not there, or not such a file.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise BusRefused(
            f"the credentials {path} cannot be read ({error}): set bus.credentials to what "
            "`trinity bus --auth` has written"
        ) from error
    said = dict(line.removeprefix("# ").split(": ", 1) for line in lines if line.startswith("# ") and ": " in line)
    seeds = [line.strip() for line in lines if line.startswith("SU")]
    if len(seeds) != 1 or "run" not in said or said.get("role") not in tuple(Role):
        raise BusRefused(f"{path} holds no credentials of a trinity bus: make them with `trinity bus --auth`")
    found = Credentials(str(json.loads(said["run"])), Role(said["role"]), seeds[0])
    if not found.is_whole:
        raise BusRefused(f"the seed in {path} is damaged: copy the file anew")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        log.warning("credentials_open", path=str(path), todo=f"others may read this secret: chmod 600 {path}")
    return found


def find_credentials(place: Path, run: str, roles: Sequence[Role]) -> Credentials:
    """Those of the first of `roles` that has any for `run`: in a file, a directory of a run, or one of several runs.

    Raises:
        BusRefused: there are none, or they are for another run or role.
    """
    if not place.is_dir():
        return _checked(read_credentials(place), place, run, roles)
    for directory in (place / token(run), place):
        for role in roles:
            path = directory / f"{role}{SUFFIX}"
            if path.exists():
                return _checked(read_credentials(path), path, run, roles)
    wanted = " or ".join(f"{role}{SUFFIX}" for role in roles)
    raise BusRefused(f"no {wanted} for run {run} in {place}: `trinity bus --auth --run {run}` writes it")


def _checked(found: Credentials, path: Path, run: str, roles: Sequence[Role]) -> Credentials:
    if found.run != run:
        raise BusRefused(f"the credentials {path} are for run {found.run}, not for {run}: set bus.credentials to those")
    if found.role not in roles:
        raise BusRefused(
            f"the credentials {path} are those of the {found.role}, and this is the {roles[0]}: "
            f"set bus.credentials to {roles[0]}{SUFFIX}, or to the directory that holds it"
        )
    return found


class Keyring:
    """A directory with the credentials of several runs, and what their server must be told of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()

    @property
    def accounts_path(self) -> Path:
        return self.directory / ACCOUNTS_FILE

    def of(self, run: str) -> Path:
        """The directory that holds the run's files."""
        return self.directory / token(run)

    def ensure(self, run: str) -> None:
        """Make what is missing for `run`. What is there stays as it is."""
        directory = self.of(run)
        for each in (self.directory, directory):
            each.mkdir(parents=True, exist_ok=True, mode=0o700)
        for role in Role:
            path = directory / f"{role}{SUFFIX}"
            if not path.exists():
                _write_secret(path, new_credentials(run, role).text())

    def runs(self) -> list[str]:
        """The runs that have credentials here."""
        return sorted(read_credentials(path).run for path in self.directory.glob(f"*/{Role.ADMIN}{SUFFIX}"))

    def credentials(self, run: str, role: Role) -> Credentials:
        return find_credentials(self.of(run), run, (role,))

    def write_accounts(self) -> Path:
        """The part of the server's configuration that says who may do what, for every run that is here."""
        for run in self.runs():
            self.ensure(run)
        text = accounts([self.credentials(run, role) for run in self.runs() for role in Role])
        aside = self.accounts_path.with_suffix(".writing")
        aside.unlink(missing_ok=True)
        _write_secret(aside, text)
        aside.replace(self.accounts_path)
        return self.accounts_path


def accounts(users: Iterable[Credentials]) -> str:
    """One account a run, so that runs share no subject, no stream and no answer; in it one user a role."""
    by_run: dict[str, list[Credentials]] = {}
    for user in users:
        by_run.setdefault(user.run, []).append(user)
    lines = ["accounts {"]
    for run, members in by_run.items():
        lines += [f"  {json.dumps(bucket_name(run))}: {{", "    jetstream: enabled", "    users: ["]
        lines += [line for member in members for line in _user(member)]
        lines += ["    ]", "  }"]
    return "\n".join((*lines, "}", ""))


def _user(user: Credentials) -> Iterable[str]:
    granted = permissions(user.run, user.role)
    yield f"      {{ nkey: {user.public_key}, permissions: {{  # {user.role}"
    yield f"        publish: {{ allow: {json.dumps(granted.publish)} }}"
    yield f"        subscribe: {{ allow: {json.dumps(granted.subscribe)} }}"
    yield "      } }"


def _write_secret(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
