"""`bottomless top`: htop for streams."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bottomless.commands.registry import verb_app
from bottomless.commands.server import Server, server_verb
from bottomless.output import Format, FormatFlag
from bottomless.top.columns import DEFAULT_SORT, SORT_KEYS, find_sort_key

if TYPE_CHECKING:
    from bottomless.top.controls import Controls

app = verb_app()

# A server that reads its tables for the first time needs a moment.
_TIMEOUT_S: Final = 15.0


@server_verb(
    app,
    "top",
    "bottomless top",
    "bottomless top --interval 0.5 --sort B/s --filter '^shop/'",
    "bottomless top --once -n 5",
    "bottomless top --once -o json",
)
def top(  # noqa: PLR0913  (its flags)
    server: Server,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.2, max=3600, help="Seconds between looks.")
    ] = 1.0,
    sort: Annotated[
        str, typer.Option(help=f"Column to sort by: {', '.join(SORT_KEYS)}.")
    ] = DEFAULT_SORT,
    reverse: Annotated[bool, typer.Option("--reverse", "-r", help="The other way round.")] = False,
    filter_: Annotated[
        str,
        typer.Option(
            "--filter",
            help="Streams with this in their names; ^shop/ for those that begin so.",
            show_default=False,
        ),
    ] = "",
    rows: Annotated[
        int | None,
        typer.Option("--rows", "-n", min=1, help="Show so many.", show_default="what fits"),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(min=1, max=1000, help="Ask for so many streams: those appended to last."),
    ] = 500,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Show one interval and end; so it is also where there is no terminal."
        ),
    ] = False,
    output: FormatFlag = Format.TABLE,
) -> None:
    """Watch streams: what comes in per second, minute and hour, commit lag, readers, writers.

    Keys: q quit, p pause, s sort, o sort by, r reverse, / filter, n rows, ? help.
    """
    # The screen needs a library and a terminal; `--help` needs neither.
    from bottomless.top.controls import Controls

    controls = Controls(
        sort=find_sort_key(sort), reverse=reverse, name_filter=filter_, rows_max=rows
    )
    has_screen = not once and output is Format.TABLE and _has_terminal()
    code = asyncio.run(_watch(server, controls, interval, limit, None if has_screen else output))
    raise typer.Exit(code)


def _has_terminal() -> bool:
    """One that can be drawn on."""
    from rich.console import Console

    return sys.stdin.isatty() and sys.stdout.isatty() and not Console().is_dumb_terminal


async def _watch(
    server: Server, controls: Controls, interval_s: float, limit: int, output: Format | None
) -> int:
    from bottomless.backoff import Retry
    from bottomless.top.once import look_once, print_board
    from bottomless.top.sampling import Sampler
    from bottomless.transport import Transport

    async with Transport(
        server.url,
        token=server.token,
        timeout_s=_TIMEOUT_S,
        retry=Retry(give_up_s=server.wait_s),
    ) as transport:
        # The screen says that there is no answer, and asks again; a script waits.
        sampler = Sampler(transport, limit=limit, is_patient=output is not None)
        if output is not None:
            board = await look_once(sampler, controls.name_filter, interval_s)
            print_board(board, controls, output)
            return 0
        from bottomless.top.screen import Screen

        return await Screen(sampler, controls, server=transport.url, interval_s=interval_s).run()
