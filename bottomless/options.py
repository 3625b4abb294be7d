"""Flags that every verb has, and the settings behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

Root = Annotated[
    Path | None, typer.Option(help="Data folder; one Delta table per stream.", show_default="data")
]
Config = Annotated[
    Path | None,
    typer.Option(help="Settings file.", show_default="conf/bottomless.toml, if it is there"),
]


def read_settings(root: Path | None, config: Path | None, **sections: dict[str, Any]) -> Any:  # noqa: ANN401  (api's own)
    """The server's settings; ends the program where they are not right."""
    from api.settings import BadSettings, load_settings

    flags: dict[str, Any] = {name: values for name, values in sections.items() if values}
    if root is not None:
        flags["root"] = root
    try:
        return load_settings(flags, config)
    except BadSettings as error:
        fail(str(error))


def fail(message: str) -> NoReturn:
    """Say why, and end with code 2."""
    typer.echo(f"bottomless: {message}", err=True)
    raise typer.Exit(2)
