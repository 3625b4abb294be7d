"""`bottomless ctx`: what is saved, who can read it, and which server the other verbs then use."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from bottomless.commands.server import DEFAULT_SERVER, Server, find_server
from bottomless.contexts import shown_token
from tests.support.cli import Cli

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "bl_0123456789abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "config")


@pytest.fixture
def saved(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    cli.ok("ctx", "add", "one", "http://one:1", "--token", SECRET)
    cli.ok("ctx", "add", "two", "http://two:2/")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(cli.folder))
    return cli


def test_ctx_lists_shows_uses_and_forgets(cli: Cli):
    assert cli.ok("ctx", "ls", "-o", "json").json == []
    cli.ok("ctx", "add", "one", "http://one:1")
    cli.ok("ctx", "add", "two", "https://two/")
    assert cli.ok("ctx", "ls", "-o", "raw").lines == ["one", "two"]
    assert cli.ok("ctx", "show", "-o", "json").json["name"] == "one", "the first is used at once"
    cli.ok("ctx", "use", "two")
    assert cli.ok("ctx", "show", "-o", "json").json["server"] == "https://two"
    cli.ok("ctx", "add", "three", "http://three", "--use")
    assert cli.ok("ctx", "show", "-o", "json").json["name"] == "three"
    cli.ok("ctx", "rm", "three")
    assert cli("ctx", "show").code == 2, "none is in use any more"
    rows = cli.ok("ctx", "ls", "-o", "csv").lines
    assert rows == ["name,in_use,server,token", "one,no,http://one:1,", "two,no,https://two,"]


def test_ctx_file_is_for_its_owner_alone(cli: Cli):
    cli.ok("ctx", "add", "one", "http://one", "--token", SECRET)
    folder = cli.folder / "bottomless"
    (path,) = folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    path.chmod(0o644)
    cli.ok("ctx", "add", "two", "http://two")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SECRET in path.read_text()


def test_ctx_never_prints_a_token(cli: Cli):
    done = [
        cli.ok("ctx", "add", "one", "http://one", "--token", "-", stdin=f"{SECRET}\n".encode()),
        cli.ok("ctx", "show"),
        *[cli.ok("ctx", "ls", "-o", how) for how in ("table", "json", "jsonl", "raw", "csv")],
    ]
    for result in done:
        assert SECRET[8:] not in result.out.decode() + result.err
    assert SECRET in (cli.folder / "bottomless" / "contexts.json").read_text()


@pytest.mark.parametrize("token", ["", "a", "a" * 24])
def test_ctx_shows_little_of_a_short_token(token: str):
    assert shown_token(token) == "…"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("add", "a b", "http://one"), 2),
        (("add", "", "http://one"), 2),
        (("add", "one", "one:4437"), 2),
        (("add", "one", "http://one", "--token", "-"), 2),
        (("use", "never"), 3),
        (("rm", "never"), 3),
        (("show", "never"), 3),
        (("show",), 2),
    ],
)
def test_ctx_refuses_what_it_cannot_do(cli: Cli, arguments: tuple[str, ...], code: int):
    done = cli("ctx", *arguments)
    assert (done.code, done.out) == (code, b"")
    assert done.err


@pytest.mark.parametrize("content", ["", "{", "[]", '{"contexts": {"a": {}}}'])
def test_ctx_says_where_a_broken_file_is(cli: Cli, content: str):
    path = cli.folder / "bottomless" / "contexts.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    done = cli("ctx", "ls")
    assert done.code == 2
    assert "contexts.json" in done.err.replace("\n", "")
    assert path.read_text() == content


def test_server_is_the_usual_one_without_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert find_server(None, None, None) == Server(DEFAULT_SERVER)


@pytest.mark.usefixtures("saved")
def test_server_of_a_context_has_its_token():
    assert find_server(None, None, None) == Server("http://one:1", SECRET)
    assert find_server(None, None, "two") == Server("http://two:2")
    assert find_server(None, "mine", None) == Server("http://one:1", "mine")


@pytest.mark.usefixtures("saved")
def test_server_that_is_named_never_sees_the_token_of_a_context():
    assert find_server("http://other", None, None) == Server("http://other")
    assert find_server("http://one:1", None, None) == Server("http://one:1")


def test_server_flag_and_context_flag_exclude_each_other(saved: Cli):
    done = saved("ls", "--server", "http://other", "--context", "one")
    assert done.code == 2
    assert "not both" in done.err


def test_context_flag_wins_over_the_environment(saved: Cli):
    """Nothing listens there: the message says where it went."""
    saved.ok("ctx", "add", "here", "http://127.0.0.1:9")
    env = {"BOTTOMLESS_SERVER": "http://127.0.0.1:11", "BOTTOMLESS_TOKEN": "another"}
    told = Cli(saved.folder, env=env)
    assert "http://127.0.0.1:9:" in told("ls", "--context", "here").err
    assert "http://127.0.0.1:11:" in told("ls").err
