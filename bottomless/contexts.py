"""Contexts: servers and tokens that were saved under a name, and which one is in use.

One JSON file in the user's own configuration folder (``$XDG_CONFIG_HOME/bottomless``), which only
the user can read. It is replaced as a whole, so that whoever reads it meanwhile sees one or the
other.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import msgspec
import typer

from bottomless.errors import InvalidRequest, NotFound

_FILE: Final = "contexts.json"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
# Of a token as much is shown as tells two of them apart.
_SHOWN: Final = 6


class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    """One server."""

    server: str
    token: str | None = None


class Contexts(msgspec.Struct, omit_defaults=True):
    """All that were saved."""

    current: str | None = None
    contexts: dict[str, Context] = {}

    def add(self, name: str, context: Context) -> None:
        """Save one, in place of one of that name; the first one is used from now on."""
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"{name!r} is no name of a context",
                hint="Letters, digits, dots, - and _, up to 64.",
            )
        self.contexts[name] = context
        self.current = self.current or name

    def find(self, name: str) -> Context:
        """The one of that name."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none is saved"
            raise NotFound(f"there is no context {name!r}", hint=f"Known: {known}.")
        return self.contexts[name]

    def remove(self, name: str) -> None:
        """Forget it, and its token."""
        self.find(name)
        del self.contexts[name]
        self.current = None if self.current == name else self.current


def contexts_path() -> Path:
    """Where they are kept."""
    folder = Path(typer.get_app_dir("bottomless"))
    # The specification says to ignore a folder that is not absolute.
    return (folder if folder.is_absolute() else Path.home() / ".config" / "bottomless") / _FILE


def load_contexts() -> Contexts:
    """What was saved; InvalidRequest where the file is not ours."""
    path = contexts_path()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Contexts)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidRequest(
            f"{path} cannot be read: {error}", hint="Mend or remove it."
        ) from error


def save_contexts(contexts: Contexts) -> None:
    """Replace the file; nobody else may read it."""
    path = contexts_path()
    fresh = path.with_name(f".{_FILE}.{os.getpid()}")
    text = msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A file of ours that was left behind may have another mode.
        fresh.unlink(missing_ok=True)
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error}") from error


def shown_token(token: str | None) -> str:
    """Enough of a token to know it by."""
    if token is None:
        return ""
    return f"{token[:_SHOWN]}…" if len(token) > 4 * _SHOWN else "…"
