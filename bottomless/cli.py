"""The `bottomless` command: the verbs of the server and its jobs; the others are in commands/."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from bottomless.commands.registry import VerbGroup
from bottomless.options import Config, Root, fail, read_settings

app = typer.Typer(
    name="bottomless",
    cls=VerbGroup,
    help="Durable streams that are Delta tables.",
    no_args_is_help=True,
    # A secret may be among them.
    pretty_exceptions_show_locals=False,
    rich_markup_mode="rich",
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(version("bottomless"))
        raise typer.Exit


@app.callback()
def bottomless(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Durable streams that are Delta tables."""
    del version


@app.command()
def serve(
    root: Root = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on.", show_default="4437")
    ] = None,
    config: Config = None,
) -> None:
    """Run the server until SIGTERM or Ctrl-C; then drain, commit and exit.

    Every setting can also be given as BOTTOMLESS_SECTION__NAME in the environment, or in the
    settings file; flags win over the environment, the environment over the file.
    """
    from api.server import run

    http = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    raise typer.Exit(run(read_settings(root, config, http=http)))


@app.command()
def path(
    stream: Annotated[str, typer.Argument(help="Name of the stream, e.g. shop/orders.")],
    root: Root = None,
    config: Config = None,
) -> None:
    """Print the folder of a stream's Delta table, for Spark, Polars, DuckDB or deltalake."""
    from api.paths import table_path

    settings = read_settings(root, config)
    try:
        found = table_path(settings, stream)
    except ValueError as error:
        fail(str(error))
    typer.echo(found)
    if not found.is_dir():
        typer.echo(
            "(not there yet: the table is made by the stream's first commit,"
            f" within {settings.commit.interval_ms} ms of its first record)",
            err=True,
        )


_JOBS: Final = {
    "compact": "Join small files of streams into large, sorted ones (Spark).",
    "index": "Write the offset index of streams.",
    "retain": "Apply retention to streams and free disk space.",
    "replay": "Replay a range of a stream's history to files, a table or a stream (Spark).",
    "check": "Check that streams are whole (Spark).",
    "maintain": "Keep all streams compact, indexed and retained (Spark).",
}


def _add_job(verb: str, summary: str) -> None:
    # The flags are the job's own: `bottomless compact --help` shows them.
    @app.command(
        verb,
        help=summary,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def job(context: typer.Context) -> None:
        from bottomless.spark_submit import NoSpark, run_job

        try:
            run_job(verb, context.args)
        except NoSpark as error:
            fail(str(error))


for _verb, _summary in _JOBS.items():
    _add_job(_verb, _summary)


def main() -> None:
    """The entry point of the installed command."""
    app()
