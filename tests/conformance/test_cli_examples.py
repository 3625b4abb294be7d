"""Every example of `bottomless VERB --help` is run, in a shell, as it stands there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import typer

import bottomless
from bottomless.cli import app
from bottomless.commands.registry import PANELS, VERBS, Examples
from tests.support.cli import UNSET, Cli
from tests.support.warm import warm_command
from tests.support.wire import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.server import ServerProcess

# Their tests have what they need beside a server: test_relay.py, test_top.py and the like.
ELSEWHERE = {"flux", "relay", "tap", "top"}
# Made for the server's machine, with arguments of their own.
WITHOUT = {"token"}


def commands_of(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All verbs, and verbs of verbs."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from commands_of(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


COMMANDS = dict(commands_of(typer.main.get_command(app)))
OURS = {name: command for name, command in COMMANDS.items() if name.split()[0] in VERBS}
EXAMPLES = [
    line
    for name, command in OURS.items()
    if name.split()[0] not in ELSEWHERE | WITHOUT
    for line in command.epilog.lines
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("examples")) as process:
        yield process


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with warm_command(tmp_path_factory.mktemp("warm")) as folder:
        yield f"{folder}:{os.environ['PATH']}"


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[bottomless.Client]:
    with bottomless.connect(server.url) as made:
        yield made


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration folder as somebody has it who has saved two contexts."""
    folder = tmp_path_factory.mktemp("config")
    for name in ("prod", "old"):
        Cli(folder).ok("ctx", "add", name, "https://streams.example.com")
    return folder


@pytest.fixture
def shop(client: bottomless.Client, contexts: Path, tmp_path: Path) -> Path:
    """What the examples speak of: streams, files, contexts; and nothing of another example."""
    # A source outlives its forks, so they go first.
    for row in sorted(client.streams(), key=lambda row: row.name == "orders"):
        client.delete(row.name)
    client.create("shop/cups")
    client.create("orders")
    client.append("orders", {"id": 1, "item": "tea"}, {"id": 2, "item": "cake"})
    (tmp_path / "orders.ndjson").write_text('{"id": 3}\n{"id": 4}\n')
    (tmp_path / "people.csv").write_text("id,name\n1,Ada\n")
    (tmp_path / "tea.png").write_bytes(b"\x89PNG\r\n")
    shutil.copytree(contexts, tmp_path / "config")
    return tmp_path


@pytest.mark.parametrize("line", EXAMPLES)
def test_example_of_the_help_runs(line: str, server: ServerProcess, shop: Path, path: str):
    kept = {name: value for name, value in os.environ.items() if name not in UNSET}
    environment = {
        **kept,
        "PATH": path,
        "BOTTOMLESS_SERVER": server.url,
        "XDG_CONFIG_HOME": str(shop / "config"),
        "SECRET": "bl_0123456789abcdefghijklmnopqrstuvwxyz",
    }
    script = f"set -o pipefail; {line}"
    with subprocess.Popen(
        ["bash", "-c", script],
        cwd=shop,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as shell:
        if line.endswith(" -f"):
            assert shell.stdout is not None
            assert shell.stdout.readline()
            # bash has become the command itself.
            shell.send_signal(signal.SIGINT)
        out, err = shell.communicate(timeout=30)
    assert shell.returncode == (130 if line.endswith(" -f") else 0), err
    assert "Traceback" not in err
    assert out or err or line.endswith(" -f") or " read " in line, "it says nothing at all"


def test_every_verb_has_examples():
    without = {name for name, command in OURS.items() if not isinstance(command.epilog, Examples)}
    assert {name for name in without if name.split()[0] not in WITHOUT} == set()


@pytest.mark.parametrize("name", ["", *(name for name in COMMANDS if name not in PANELS["Jobs"])])
def test_every_verb_has_help(name: str, tmp_path: Path):
    done = Cli(tmp_path).ok(*name.split(), "--help")
    assert "Usage: bottomless" in done.out.decode()
    if name in OURS and name.split()[0] not in WITHOUT:
        shown = "".join(done.out.decode().split())
        for line in COMMANDS[name].epilog.lines:
            assert "".join(line.split()) in shown
