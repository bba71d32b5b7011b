"""The owner's part of the folder of `state`: its key, its invitations to closed runs, lists."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from p2pswarm.base.errors import BadMessage, Unusable
from p2pswarm.base.files import refuse_pipe, write_durably
from p2pswarm.base.ids import Address
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.key_file import identity_from
from p2pswarm.net.wire.message import decode, encode
from p2pswarm.node.run.run_folder import DAMAGE
from p2pswarm.run.access.access_list import sign_list
from p2pswarm.run.access.invitation_book import InvitationBook, book_from
from p2pswarm.run.access.messages import AccessList

KEY_FILE = "owner.key"
ADDRESS_FILE = "trainer.address"
FILE_BYTES_MAX = 16 << 20


class OwnerFolder:
    """The owner's files in one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def key(self, *, make: bool = False) -> Iterator[Identity]:
        """The owner's key, locked for this block; `make`: make one if there is none."""
        file = self.path / KEY_FILE
        if not make and not file.exists():
            raise Unusable(
                f"{self.path} has no owner's key: it is made when a closed run is started there "
                "(p2pswarm train run.toml --closed)"
            )
        with identity_from(file) as owner:
            yield owner

    def book(self, run: bytes) -> InvitationBook:
        """The invitations of a run."""
        file = self._file(run, "invitations")
        try:
            data = _read(file)
            return InvitationBook() if data is None else book_from(json.loads(data))
        except DAMAGE as error:
            raise Unusable(
                f"{file} is no list of invitations: restore it from a copy, or move it away and "
                "invite anew"
            ) from error

    def write_book(self, run: bytes, book: InvitationBook) -> None:
        """Keep the invitations of a run; they are on the disk when this returns."""
        _write(self._file(run, "invitations"), json.dumps(asdict(book), indent=1).encode())

    def next_list(
        self, owner: Identity, run: bytes, book: InvitationBook, now_s: float
    ) -> AccessList:
        """Sign the list of what is revoked and renewed, and keep it with the book."""
        access = sign_list(owner, run, *book.next_list(now_s))
        self.write_book(run, book)
        self.write_list(access)
        return access

    def access(self, run: bytes) -> AccessList | None:
        """The newest access list that is kept here; None if there is none."""
        file = self._file(run, "access")
        data = _read(file)
        if data is None:
            return None
        try:
            access = decode(data)
        except BadMessage:
            access = None
        if not isinstance(access, AccessList):
            raise Unusable(f"{file} is damaged: move it away, and revoke again what was revoked")
        return access

    def write_list(self, access: AccessList) -> None:
        """Keep a list, unless a newer one is here."""
        known = self.access(access.run)
        if known is None or known.version < access.version:
            _write(self._file(access.run, "access"), encode(access))

    def trainer_address(self) -> Address | None:
        """Return where the trainer of this folder was reachable when it started."""
        data = _read(self.path / ADDRESS_FILE)
        try:
            return None if data is None else Address.parse(data.decode().strip())
        except ValueError:
            return None

    def write_address(self, address: Address) -> None:
        """Keep where the trainer of this folder is reachable, for invitations."""
        _write(self.path / ADDRESS_FILE, f"{address}\n".encode())

    def _file(self, run: bytes, what: str) -> Path:
        return self.path / f"{run.hex()}.{what}"


def _read(file: Path) -> bytes | None:
    try:
        refuse_pipe(file)
        with file.open("rb") as opened:
            return opened.read(FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unusable(f"{file} cannot be read: {error.strerror}") from error


def _write(file: Path, data: bytes) -> None:
    try:
        write_durably(file, data)
    except OSError as error:
        raise Unusable(
            f"{file} cannot be written: {error.strerror}; free some space, or move `state`"
        ) from error
