"""Verbs that say what a stream keeps and how: settings, trim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from bottomless.commands.moments import is_offset, offset_of
from bottomless.commands.registry import verb_app
from bottomless.commands.server import Server, StreamArgument, find_stream, server_verb
from bottomless.output import Format, FormatFlag, print_document, say

if TYPE_CHECKING:
    from collections.abc import Iterable

app = verb_app()


@server_verb(
    app,
    "settings",
    "bottomless settings orders",
    "bottomless settings orders ack=table commit.interval_ms=200",
    "bottomless settings orders retain.age_seconds=2592000 ack=null -o json",
)
def settings(
    server: Server,
    stream: StreamArgument,
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...",
            help="What to change; null gives a setting back.",
            show_default=False,
        ),
    ] = None,
    output: FormatFlag = Format.TABLE,
) -> None:
    """Show a stream's settings, its own and those in force, after changing some.

    A change is durable and in force when it is answered. docs/streams.md says what there is.
    """
    patch = _patch(changes or [])
    with server.connect() as client:
        find_stream(client, stream)
        print_document(client.settings(stream, **patch), output)


@server_verb(
    app,
    "trim",
    "bottomless trim orders --before 30d",
    "bottomless trim orders --before $(bottomless seek-time orders 1h)",
    "bottomless trim orders --before now",
)
def trim(
    server: Server,
    stream: StreamArgument,
    before: Annotated[
        str,
        typer.Option(
            help="An offset, which stays, a time, an age like 30d, or now: all there is.",
            show_default=False,
        ),
    ],
    output: FormatFlag = Format.TABLE,
) -> None:
    """Give up the records before an offset or a time.

    The next run of `bottomless retain` or `maintain` removes them, in whole files, but for what a
    fork still reads; from then on a read from before that point is answered with 410. The point is
    the setting retain.before: it only rises, and brings nothing back.
    """
    with server.connect() as client:
        wanted = _trim_point(before, find_stream(client, stream).tail)
        known = (client.settings(stream)["own"].get("retain") or {}).get("before")
        found = client.settings(stream, retain={"before": wanted})
    point = found["own"]["retain"]["before"]
    if known is not None and point > wanted:
        say(f"{stream}: without effect, what lies before {point} was given up already")
    else:
        say(f"{stream}: what lies before it goes with the next run of retain or maintain")
    print_document({"stream": stream, "before": point}, output, raw="before")


def _trim_point(text: str, tail: str) -> str:
    from bottomless.errors import InvalidRequest

    behind_tail = f"{int(tail.replace('_', '')) + 1:032d}"
    if text == "now":
        return behind_tail
    point = offset_of(text)
    # Nobody gives up what is not there yet, and a setting would do just that.
    if point > max(behind_tail, offset_of("now")):
        what = "offset" if is_offset(text) else "time"
        raise InvalidRequest(f"that {what} is still to come", hint="now gives up all there is.")
    return point


def _patch(changes: Iterable[str]) -> dict[str, Any]:
    """``commit.interval_ms=200`` as the server takes it."""
    patch: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{change!r} is no NAME=VALUE")
        section, dot, key = name.partition(".")
        value = _value(text)
        if not dot:
            patch[section] = value
        elif isinstance(patch.setdefault(section, {}), dict):
            patch[section][key] = value
        else:
            raise typer.BadParameter(f"{section} is given as a whole and in parts")
    return patch


def _value(text: str) -> Any:  # noqa: ANN401  (any JSON value)
    """JSON, or else the text itself. Digits of an offset are no number."""
    if is_offset(text):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
