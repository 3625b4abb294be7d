"""`bottomless version`."""

from __future__ import annotations

import platform
from importlib.metadata import version as version_of

from bottomless.commands.registry import Examples, verb_app
from bottomless.output import Format, FormatFlag, print_document

app = verb_app()


@app.command(epilog=Examples("bottomless version", "bottomless version -o raw"))
def version(output: FormatFlag = Format.TABLE) -> None:
    """Print the version. Raw is the number alone."""
    document = {"bottomless": version_of("bottomless"), "python": platform.python_version()}
    print_document(document, output, raw="bottomless")
