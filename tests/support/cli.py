"""The command line, called in this process: a process of its own would take a second each time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from typer.testing import CliRunner

from bottomless.cli import app

if TYPE_CHECKING:
    from pathlib import Path

# What a developer's own shell says must not reach a test.
UNSET = ("BOTTOMLESS_SERVER", "BOTTOMLESS_TOKEN", "BOTTOMLESS_CONTEXT")


@dataclass(frozen=True, slots=True)
class Done:
    """What a call left behind."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        """Standard output, line by line."""
        return self.out.decode().splitlines()

    @property
    def json(self) -> Any:
        """Standard output as JSON."""
        return msgspec.json.decode(self.out)


@dataclass(frozen=True, slots=True)
class Cli:
    """`bottomless …` for one server, with a configuration folder of the test's own."""

    folder: Path
    url: str | None = None
    env: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Done:
        """Run it."""
        env: dict[str, str | None] = dict.fromkeys(UNSET)
        env |= {"XDG_CONFIG_HOME": str(self.folder), "COLUMNS": "120", "BOTTOMLESS_WAIT": "0"}
        if self.url is not None:
            env["BOTTOMLESS_SERVER"] = self.url
        result = CliRunner().invoke(app, list(arguments), input=stdin, env={**env, **self.env})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout_bytes, result.stderr)

    def ok(self, *arguments: str, stdin: bytes = b"") -> Done:
        """Run it; it must work."""
        done = self(*arguments, stdin=stdin)
        assert done.code == 0, f"{arguments}: {done.code} {done.err}"
        return done
