"""The file of tokens: ``<root>/_auth/tokens.json``, digests only, readable by its owner only.

Written in one step (temporary file, sync, rename, sync of the folder), by one program at a time.
Whoever reads it sees the old tokens or the new ones, never a part.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from typing import TYPE_CHECKING, Any, Final

from api.auth.tokens import Token, dump_token, load_token

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AUTH_FOLDER: Final = "_auth"
_FILE: Final = "tokens.json"
_LOCK: Final = "lock"
_VERSION: Final = 1
_BYTES_MAX: Final = 64 * 1024 * 1024

Stamp = tuple[int, int, int]
"""Changes when the file does: inode, time of the last change, size."""


class DamagedFile(ValueError):
    """A file that decides who may do what cannot be understood; nobody guesses."""


class TokenFile:
    """The tokens of one data folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / AUTH_FOLDER
        self.path = self._folder / _FILE

    def stamp(self) -> Stamp | None:
        """What to compare to see a change; None where there is no file."""
        return stamp_of(self.path)

    def load(self) -> tuple[Token, ...]:
        """All tokens; none where there is no file. DamagedFile if it is not what was written."""
        data = read_bounded(self.path)
        if data is None:
            return ()
        try:
            found = json.loads(data)
            if found["version"] != _VERSION:
                raise DamagedFile(f"{self.path} was written by another version")
            tokens = tuple(load_token(one) for one in found["tokens"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedFile(f"{self.path} is damaged: {_reason(error)}") from error
        if len({token.digest for token in tokens} | {token.id for token in tokens}) != 2 * len(
            tokens
        ):
            raise DamagedFile(f"{self.path} is damaged: two tokens are one")
        return tokens

    @contextlib.contextmanager
    def editing(self) -> Iterator[list[Token]]:
        """The tokens, to be changed in place; what they are at the end is written.

        Another program that edits them waits. Nothing is written if the block raises.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._give_to_owner(lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
            tokens = list(self.load())
            yield tokens
            self._write(tokens)
        finally:
            os.close(lock)

    def _write(self, tokens: list[Token]) -> None:
        content = {"version": _VERSION, "tokens": [dump_token(token) for token in tokens]}
        data = json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"
        temporary = self._folder / f".{_FILE}.{os.getpid()}"
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123  (a descriptor)
                self._give_to_owner(file.fileno())
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._give_to_owner(folder)
            os.fsync(folder)
        finally:
            os.close(folder)

    def _give_to_owner(self, descriptor: int) -> None:
        """``sudo bottomless token …`` must not leave a file that the server may not read."""
        if os.geteuid() == 0:
            owner = self._root.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def stamp_of(path: Path) -> Stamp | None:
    """Inode, time of the last change and size; None where there is no file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_bounded(path: Path) -> bytes | None:
    """The whole file; None where there is none. DamagedFile if it cannot be read or is huge."""
    try:
        with path.open("rb") as file:
            data = file.read(_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > _BYTES_MAX:
        raise DamagedFile(f"{path} is larger than {_BYTES_MAX} bytes")
    return data


def _reason(error: Exception) -> Any:  # noqa: ANN401  (something to print)
    return str(error) if isinstance(error, ValueError) else "a field is missing or malformed"
