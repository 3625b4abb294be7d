"""The screen as lines of text, for any width and height. Only the streams in view are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.cells import set_cell_size
from rich.text import Text

from bottomless.top import figures
from bottomless.top.columns import COLUMNS, NAME, Column, fitting, matches, select

if TYPE_CHECKING:
    from bottomless.top.controls import Controls
    from bottomless.top.model import Board, Row

_HEAD_LINES: Final = 5
_FOOT_LINES: Final = 2
_WIDTH_MIN: Final = 30
_NAME_WIDTH_MIN: Final = 12
_LATE_MS: Final = 10_000
_PROMPTS: Final = {"/": "filter (^ for the beginning): ", "o": "sort by: ", "n": "rows: "}
_KEYS: Final = "q quit  p pause  s sort  o sort by  r reverse  / filter  n rows  ? help"
_HELP: Final = (
    "q            quit",
    "p, space     pause: the figures stand still, counting goes on",
    "s            sort by the next column",
    "o            sort by a column, by its name",
    "r            reverse the order",
    "/            filter: a part of the name, or ^ and its beginning; Esc ends it",
    "n            show so many streams; 0 for all there is room for",
    "up, down     mark a stream (also k, j, page up and down, home, end)",
    "",
    "rec/s B/s    what came in per second, over the last interval",
    "min, h       what came in during the last minute and hour; since top was started,",
    "             where that is shorter",
    "records      in the stream now; size and files: of its table and what waits for it",
    "last         how long ago the last append was",
    "lag          age of the oldest record that is not in the table yet",
    "readers      live readers that are connected",
    "writers      idempotent producers that sent more than once, within a minute",
)


@dataclass(slots=True)
class Scene:
    """Everything that is on the screen."""

    server: str
    interval_s: float
    board: Board | None = None
    trouble: str = ""
    """Why there are no newer figures."""
    top_line: int = 0
    """The first stream in view."""


def draw(scene: Scene, controls: Controls, width: int, height: int) -> Text:
    """All lines, none wider than the terminal."""
    width = max(width, _WIDTH_MIN)
    if controls.has_help:
        lines = [Text(line) for line in _HELP]
        foot = [Text("any key: back", style="dim")]
    else:
        body, foot = _body(scene, controls, width, height)
        lines = _head(scene, controls) + body
    lines = [_cut(line, width) for line in lines[: max(0, height - len(foot))]]
    lines += [Text("")] * (height - len(foot) - len(lines))
    return Text("\n", no_wrap=True).join([*lines, *(_cut(line, width) for line in foot)])


def table(rows: list[Row], columns: list[Column], *, name_width: int, sort: str = "") -> list[Text]:
    """A heading, and a line per stream."""
    heading = Text(set_cell_size("stream", name_width), style="bold reverse")
    if sort == NAME:
        heading.stylize("yellow")
    for column in columns:
        style = "yellow" if column.key == sort else ""
        heading.append(" " + column.key.rjust(column.width), style=style)
    return [heading, *(_line(row, columns, name_width) for row in rows)]


def once_table(board: Board, rows: list[Row], controls: Controls) -> list[str]:
    """For a pipe: nothing is cut, and only what one interval can tell."""
    names = [len(_plain(row.stream.name)) for row in rows]
    columns = [column for column in COLUMNS if not column.key.endswith(("/min", "/h"))]
    lines = table(rows, columns, name_width=max([_NAME_WIDTH_MIN, *names]))
    total, totals = board.total, board.totals
    summary = Text(
        f"total {figures.count(total.records_s)} rec/s, {figures.size(total.bytes_s)}/s,"
        f" {totals.streams:,} streams, lag {figures.lag(totals.lag_s * 1000)}"
    )
    shown = len(rows)
    if board.is_cut:
        summary.append(f"; {shown:,} shown, of the latest {len(board.rows):,}: there are more")
    elif shown < len([row for row in board.rows if matches(row.stream.name, controls.name_filter)]):
        summary.append(f"; the first {shown:,} shown")
    return [line.plain.rstrip() for line in [summary, *lines]]


def _head(scene: Scene, controls: Controls) -> list[Text]:
    first = Text("bottomless top  ", style="bold").append(scene.server, style="not bold cyan")
    board = scene.board
    if board is None:
        return [first, Text(scene.trouble or "waiting for the first answer", style="yellow")]
    totals, total = board.totals, board.total
    if board.now:
        first.append(f"  {board.now[:19].replace('T', ' ')} UTC", style="not bold")
    second = Text(
        f"{totals.streams:,} streams  {totals.readers:,} readers  not in tables yet:"
        f" {figures.count(totals.uncommitted_records)} records,"
        f" {figures.size(totals.uncommitted_bytes)}, lag {figures.lag(totals.lag_s * 1000)}"
    )
    third = Text("total  ").append(
        f"{figures.count(total.records_s)} rec/s  {figures.size(total.bytes_s)}/s", style="bold"
    )
    third.append(
        f"   {figures.count(total.records_minute)} rec/min  {figures.size(total.bytes_minute)}/min"
        f"   {figures.count(total.records_hour)} rec/h  {figures.size(total.bytes_hour)}/h"
    )
    if board.watched_s < 3600:
        third.append(f"  (seen for {figures.age(board.watched_s)})", style="dim")
    return [first, second, third, _status(scene, controls, board)]


def _status(scene: Scene, controls: Controls, board: Board) -> Text:
    line = Text()
    if scene.trouble:
        line.append(f"{scene.trouble}  ", style="bold red")
    order = ", reversed" if controls.reverse else ""
    line.append(f"every {scene.interval_s:g}s  sorted by {controls.sort}{order}")
    if controls.name_filter:
        line.append(f"  filter {_plain(controls.name_filter)}", style="cyan")
    if board.is_cut:
        # The server was asked with the filter, so these are the latest of those that match.
        line.append(f"  the latest {len(board.rows):,} of more", style="yellow")
    if controls.is_paused:
        line.append("  PAUSED", style="bold yellow")
    return line


def _body(
    scene: Scene, controls: Controls, width: int, height: int
) -> tuple[list[Text], list[Text]]:
    rows: list[Row] = []
    if scene.board is not None:
        rows = select(
            scene.board.rows,
            name_filter=controls.name_filter,
            sort=controls.sort,
            reverse=controls.reverse,
        )
    room = max(1, height - _HEAD_LINES - _FOOT_LINES)
    room = min(room, controls.rows_max or room)
    controls.page = room
    controls.settle(len(rows))
    scene.top_line = max(0, min(scene.top_line, len(rows) - room))
    if not scene.top_line <= controls.selected < scene.top_line + room:
        is_above = controls.selected < scene.top_line
        scene.top_line = controls.selected - (0 if is_above else room - 1)
    seen = rows[scene.top_line : scene.top_line + room]
    name_width, columns = fitting(width, controls.sort)
    lines = table(seen, columns, name_width=name_width, sort=controls.sort)
    marked = controls.selected - scene.top_line
    if seen:
        lines[1 + marked].stylize("on grey30")
    elif scene.board is not None:
        lines.append(Text(_why_empty(scene.board, controls), style="dim"))
    detail = _detail(seen[marked], controls.selected, len(rows)) if seen else Text("")
    return lines, [detail, _foot(controls)]


def _why_empty(board: Board, controls: Controls) -> str:
    if board.scope != controls.name_filter:
        # Those that match may not be among those that were asked for before.
        return "asking the server"
    return "no stream matches" if controls.name_filter else "no streams"


def _detail(row: Row, index: int, count: int) -> Text:
    """The marked stream, with what there may be no column for."""
    stream = row.stream
    line = Text(f"{index + 1:,}/{count:,} ", style="dim").append(_plain(stream.name), style="bold")
    line.append(f"  latest record {stream.tail}", style="not bold")
    if stream.last_append is not None:
        line.append(f" {stream.last_append[:23].replace('T', ' ')}")
    line.append(f"  {stream.content_type}{'  closed' if stream.closed else ''}")
    return line


def _foot(controls: Controls) -> Text:
    if controls.prompt:
        return Text(_PROMPTS[controls.prompt]).append(controls.typed + "_", style="bold")
    if controls.message:
        return Text(controls.message, style="red")
    return Text(_KEYS, style="dim")


def _line(row: Row, columns: list[Column], name_width: int) -> Text:
    stream = row.stream
    line = Text(set_cell_size(_plain(stream.name), name_width))
    if stream.fault is not None:
        line.stylize("red")
    elif row.rates.records_s:
        line.stylize("bold green")
    for column in columns:
        value = column.value(row)
        is_late = column.key == "lag" and (value or 0) > _LATE_MS
        line.append(" " + column.text(value).rjust(column.width), style="red" if is_late else "")
    return line


def _plain(name: str) -> str:
    """Nothing in a name may move the cursor."""
    return "".join(char if char.isprintable() else "?" for char in name)


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line
