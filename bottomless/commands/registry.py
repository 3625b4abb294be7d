"""Which verbs there are, and where each one lives: a verb's module is imported when it is called.

A new verb is one line in `VERBS`. Its module has an ``app = verb_app()`` and decorates the function
with ``@app.command("name", epilog=Examples(…))``. Whatever it raises of the client library's errors
ends the program with the exit code of `EXIT_CODES`, and its message on standard error.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, Final, Self

import typer
from typer.core import TyperGroup
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typer._click.core import Context

VERBS: Final[dict[str, str]] = {
    "create": "bottomless.commands.streams",
    "ls": "bottomless.commands.streams",
    "info": "bottomless.commands.streams",
    "append": "bottomless.commands.appending",
    "read": "bottomless.commands.reading",
    "tail": "bottomless.commands.reading",
    "get": "bottomless.commands.reading",
    "seek-time": "bottomless.commands.reading",
    "flux": "bottomless.commands.pipes",
    "tap": "bottomless.commands.pipes",
    "relay": "bottomless.commands.relay",
    "settings": "bottomless.commands.shaping",
    "trim": "bottomless.commands.shaping",
    "close": "bottomless.commands.streams",
    "delete": "bottomless.commands.streams",
    "fork": "bottomless.commands.streams",
    "bench": "bottomless.commands.bench",
    "ctx": "bottomless.commands.context_verbs",
    "token": "bottomless.tokens",
    "version": "bottomless.commands.about",
    "top": "bottomless.commands.top",
}

# How the list of verbs is divided; others come at its end.
PANELS: Final = {
    "Streams": ("create", "ls", "info", "settings", "trim", "fork", "close", "delete"),
    "Records": ("append", "read", "tail", "get", "seek-time", "flux", "tap", "relay"),
    "Server": ("serve", "token", "path", "top", "bench"),
    "Jobs": ("compact", "index", "retain", "replay", "check", "maintain"),
    "This program": ("ctx", "version"),
}
_PANEL_OF: Final = {verb: panel for panel, verbs in PANELS.items() for verb in verbs}

# What scripts may rely on; docs/cli.md shows it.
EXIT_CODES: Final = {
    0: "done",
    1: "refused, or failed: the stream is closed, fenced or another; data is damaged",
    2: "the call is wrong: an option, a value, a setting",
    3: "not found: no such stream, record or context; deleted, or trimmed",
    4: "not allowed: no token, a wrong one, or one that may not do this",
    5: "no answer: the server cannot be reached, is starting, or is full",
    130: "ended by Ctrl-C",
}
_CODE_OF_ERROR: Final = {
    "InvalidRequest": 2,
    "NotFound": 3,
    "Gone": 3,
    "NotAllowed": 4,
    "Unavailable": 5,
    "BottomlessError": 1,
}


def verb_app() -> typer.Typer:
    """What the verbs of a module are added to."""
    return typer.Typer(
        add_completion=False, pretty_exceptions_show_locals=False, rich_markup_mode="rich"
    )


class Examples(str):
    """The end of a verb's help; a test runs every line, in a shell and against a server."""

    __slots__ = ("lines",)
    lines: tuple[str, ...]

    def __new__(cls, *lines: str) -> Self:
        """As the help shows them."""
        # A square bracket would be markup.
        shown = [f"[dim]$[/] {line.replace('[', chr(92) + '[')}" for line in lines]
        made = super().__new__(cls, "\n".join(["[bold]Examples[/]", *shown]))
        made.lines = lines
        return made


def help_of(function: Callable[..., None]) -> str:
    """A docstring without its line ends: a terminal has its own width."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


class VerbGroup(TyperGroup):
    """The verbs that were added to it, and those of `VERBS`."""

    @override
    def list_commands(self, ctx: Context) -> list[str]:
        """All verbs, panel by panel."""
        known = [*self.commands, *(verb for verb in VERBS if verb not in self.commands)]
        placed = [verb for verb in _PANEL_OF if verb in known]
        return [*placed, *(verb for verb in known if verb not in _PANEL_OF)]

    @override
    def get_command(self, ctx: Context, cmd_name: str) -> Any:
        """The verb, imported now if it was not before."""
        if cmd_name in VERBS and cmd_name not in self.commands:
            module = importlib.import_module(VERBS[cmd_name])
            group = typer.main.get_group(module.app)
            self.add_command(group.commands[cmd_name], cmd_name)
        command: Any = self.commands.get(cmd_name)
        if command is not None:
            command.rich_help_panel = _PANEL_OF.get(cmd_name)
        return command

    @override
    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Also for a verb that is misspelt: the names of all are needed for a suggestion."""
        if args and args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            for verb in VERBS:
                self.get_command(ctx, verb)
        return super().resolve_command(ctx, args)

    @override
    def invoke(self, ctx: Context) -> Any:
        """Run a verb; what goes wrong becomes a message and an exit code."""
        with exit_codes():
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
            return result


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """Ends the program as `EXIT_CODES` says."""
    try:
        yield
    except KeyboardInterrupt:
        # It may come between the making of a coroutine and its start. Nobody wants to read of it.
        warnings.simplefilter("ignore", RuntimeWarning)
        raise
    except BrokenPipeError as error:
        # Whoever reads our output has seen enough: `| head -1`.
        _drop_output()
        raise typer.Exit(0) from error
    except OSError as error:
        # A file that may not be read, a disk that is full.
        _drop_output()
        say_error(str(error))
        raise typer.Exit(1) from error
    except UnicodeEncodeError as error:
        # The shell hands on any bytes.
        if error.encoding != "utf-8":
            raise
        say_error(f"{error.object!r} is not UTF-8")
        raise typer.Exit(2) from error
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        say_error(str(error))
        raise typer.Exit(code) from error


def _drop_output() -> None:
    """What could not be written is not tried again: Python does that, and complains, at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say_error(text: str) -> None:
    """Why the program ends."""
    typer.echo(f"bottomless: {text}", err=True)


def exit_code(error: Exception) -> int | None:
    """What a client library's error ends the program with; None for any other error."""
    # By name: these classes need not be imported where no verb has used them.
    for kind in type(error).__mro__:
        if kind.__module__ == "bottomless.errors" and kind.__name__ in _CODE_OF_ERROR:
            return _CODE_OF_ERROR[kind.__name__]
    return None
