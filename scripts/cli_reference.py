"""docs/cli.md: every verb, argument, flag and example, from the commands themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bottomless.cli import app
from bottomless.commands.registry import EXIT_CODES, PANELS, Examples

if TYPE_CHECKING:
    from collections.abc import Iterator

# What a command or a parameter is called belongs to typer's own parts.
Node = Any
FRAME = Path(__file__).with_name("cli_page.md")
PIPE = " \\| "
# They are told once, for all verbs that have them.
SHARED = ("server", "token", "context", "wait", "help")
JOBS = set(PANELS["Jobs"])


def cli_page(note: str) -> str:
    """The page: what holds for all verbs is written by hand, the rest is theirs."""
    group: Node = typer.main.get_command(app)
    commands = dict(commands_of(group))
    parts = {
        "note": note,
        "verbs": "\n".join(panels(set(commands))),
        "flags": "\n".join(
            f"| {flags_of(option)} | `{option.envvar}` | {plain(option.help)} |"
            for option in commands["read"].params
            if option.name in SHARED and option.name != "help"
        ),
        "codes": "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()),
    }
    page = FRAME.read_text()
    for key, text in parts.items():
        page = page.replace(f"{{{key}}}", text)
    lines = [page.rstrip("\n")]
    for name, command in commands.items():
        if name not in JOBS:
            lines += ["", f"## {name}", "", *verb_section(name, command)]
    return "\n".join(lines) + "\n"


def panels(verbs: set[str]) -> Iterator[str]:
    """A line for each, with links."""
    for panel, names in PANELS.items():
        places = {
            name: "jobs.md" if name in JOBS else f"#{name}" for name in names if name in verbs
        }
        yield f"* {panel}: {' · '.join(f'[{name}]({place})' for name, place in places.items())}"


def commands_of(group: Node, prefix: str = "") -> Iterator[tuple[str, Node]]:
    """All verbs, and verbs of verbs."""
    for name in group.list_commands(typer.Context(group)):
        command = group.get_command(typer.Context(group), name)
        yield prefix + name, command
        if hasattr(command, "list_commands"):
            yield from commands_of(command, f"{prefix}{name} ")


def verb_section(name: str, command: Node) -> list[str]:
    """One verb: what it does, how it is called, examples."""
    paragraphs = plain_text(command.help or "").split("\n\n")
    lines = [*"\n\n".join(" ".join(part.split()) for part in paragraphs).splitlines()]
    if hasattr(command, "list_commands"):
        return lines
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    options = [
        item for item in command.params if item.param_type_name == "option" and not is_shared(item)
    ]
    shown = " ".join(metavar(item) for item in arguments)
    usage = " ".join(part for part in (f"bottomless {name}", shown, "[OPTIONS]") if part)
    lines += ["", "```", usage, "```"]
    if arguments or options:
        lines += ["", "| | default | meaning |", "| --- | --- | --- |"]
        lines += [
            f"| `{metavar(item)}` | {default(item)} | {plain(item.help)} |" for item in arguments
        ]
        lines += [
            f"| {flags_of(item)} | {default(item)} | {plain(item.help)} |" for item in options
        ]
    if any(item.name == "server" for item in command.params):
        lines += ["", "And the flags that say [which server](#which-server)."]
    if isinstance(command.epilog, Examples):
        lines += ["", "```sh", *command.epilog.lines, "```"]
    return lines


def is_shared(option: Node) -> bool:
    """The flags of the server are told once."""
    return option.name == "help" or (option.name in SHARED and bool(option.envvar))


def metavar(argument: Node) -> str:
    """As the usage line writes it."""
    name = argument.metavar or argument.name.rstrip("_").upper()
    if argument.nargs == -1:
        return name if name.startswith("[") else f"[{name}]..."
    return name if argument.required else f"[{name}]"


def flags_of(option: Node) -> str:
    """All spellings, and what is expected behind them."""
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    kind = option.display_type(typer.Context(typer.main.get_command(app)))
    # Lists of words are worth to be seen; that a path is a path is not.
    return f"{names} {kind.strip('<>').replace('|', PIPE)}" if "|" in kind else names


def default(parameter: Node) -> str:
    """What holds where it is not given."""
    told = parameter.show_default
    if isinstance(told, str):
        return told
    value = parameter.default
    if told is False or value is None or value == "" or value is False or callable(value):
        return ""
    return f"`{getattr(value, 'value', value)}`" if value is not True else "yes"


def plain(text: str | None) -> str:
    """For a cell of a table."""
    return plain_text(" ".join((text or "").split())).replace("|", "\\|")


def plain_text(text: str) -> str:
    """Without the marks of rich."""
    return re.sub(r"\[/?(bold|dim|italic)?\]", "", text).replace("\\[", "[")
