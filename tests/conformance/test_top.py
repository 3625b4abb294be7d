"""`bottomless top` in a real terminal, beside a real server under load; and what it asks for."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx
import pytest

import bottomless
from api.routes.admin import StreamEntry, StreamPage
from tests.support.server import EXECUTABLE, ServerProcess, free_port
from tests.support.tmux import POLL_INTERVAL_S, Terminal, needs_tmux

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from tests.support.guarded import Guarded

JSON = {"content-type": "application/json"}
# Writers that are back as soon as their server is.
RETRY = bottomless.Retry(longest_s=0.3)
STATUS_LINE = 3


class Load:
    """Writers that go on until they are stopped; a server that is away does not end them."""

    def __init__(self, server: ServerProcess, *names: str) -> None:
        self._url = server.url
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(name,)) for name in names]

    def _write(self, name: str) -> None:
        with (
            bottomless.connect(self._url, retry=RETRY) as client,
            client.producer(name, linger_ms=20) as producer,
        ):
            number = 0
            while not self._is_over.wait(0.01):
                number += 1
                producer.append({"number": number})

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(20)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess.start(tmp_path_factory.mktemp("top") / "root") as made:
        yield made


@pytest.fixture(scope="module")
def load(server: ServerProcess) -> Iterator[Load]:
    with (
        httpx.Client(base_url=server.url, trust_env=False) as client,
        Load(server, "shop/orders", "web/hits") as made,
    ):
        for name in ("shop/idle", "web/idle", "other"):
            assert client.put(f"/v1/stream/{name}", headers=JSON).status_code == 201
        deadline = time.monotonic() + 20
        while newest(client) != {"shop/orders", "web/hits"}:
            assert time.monotonic() < deadline, "the writers do not write"
            time.sleep(POLL_INTERVAL_S)
        yield made


def newest(client: httpx.Client) -> set[str]:
    """The two streams that were appended to last."""
    answer = client.get("/v1/streams", params={"order": "newest", "limit": 2})
    return {entry["name"] for entry in answer.json()["streams"]}


def top(server: ServerProcess, *flags: str, then: str = "") -> str:
    """The command line, and what the shell does after it."""
    command = " ".join([str(EXECUTABLE), "top", "--server", server.url, "-i", "0.3", *flags])
    return f"{command}; echo ended with $?; {then} read line"


def rate_of(screen: str, name: str) -> float:
    """The first figure beside a stream's name: records per second. 0 where there is none."""
    for line in screen.splitlines():
        if line.startswith(f"{name} "):
            text = line.split()[1]
            return 0.0 if text == "-" else float(text.replace(",", "").rstrip("kM"))
    return 0.0


def streams_on(screen: str) -> list[str]:
    """The streams, from top to bottom."""
    names = ("shop/orders", "web/hits", "shop/idle", "web/idle", "other")
    return [line.split()[0] for line in screen.splitlines() if line.startswith(names)]


# The terminal.


@needs_tmux
@pytest.mark.usefixtures("load")
def test_top_shows_the_load_and_obeys_its_keys(server: ServerProcess) -> None:
    with Terminal(top(server)) as terminal:
        seen = terminal.wait_for(
            lambda screen: rate_of(screen, "shop/orders") > 0 < rate_of(screen, "web/hits"),
            "records per second of both writers",
        )
        assert set(streams_on(seen)[:2]) == {"shop/orders", "web/hits"}
        assert rate_of(seen, "other") == 0
        total = re.search(r"total +([0-9.,]+) rec/s", seen)
        assert total is not None
        assert float(total[1].replace(",", "")) > 0
        assert terminal.ask("alternate_on") == "1"

        terminal.press("o", "n", "a", "m", "e", "Enter")
        terminal.wait_for(
            lambda screen: (
                streams_on(screen) == ["other", "shop/idle", "shop/orders", "web/hits", "web/idle"]
            ),
            "the order of their names",
        )
        terminal.press("r")
        terminal.wait_for(lambda screen: streams_on(screen)[0] == "web/idle", "the reverse order")

        terminal.press("/", "^", "s", "h", "o", "p", "Enter")
        terminal.wait_for(
            lambda screen: streams_on(screen) == ["shop/orders", "shop/idle"], "the filter"
        )
        terminal.press("Escape")
        terminal.wait_for(lambda screen: len(streams_on(screen)) == 5, "all of them again")
        terminal.press("n", "2", "Enter")
        terminal.wait_for(lambda screen: len(streams_on(screen)) == 2, "two rows")
        terminal.press("Down", "Down")
        terminal.wait_for(lambda screen: "3/5 shop/orders" in screen, "the third stream, marked")

        terminal.press("?")
        terminal.wait_for(lambda screen: "any key: back" in screen, "the help")
        terminal.press("x")
        terminal.press("q")
        terminal.wait_for(lambda screen: "ended with 0" in screen, "the end")
        assert terminal.ask("alternate_on") == "0"


@needs_tmux
def test_top_shows_a_running_bench(server: ServerProcess) -> None:
    """Its stream is made while top looks on, and is gone when it ends."""
    with Terminal(top(server)) as terminal:
        terminal.wait_for(lambda screen: "rec/s" in screen, "the screen")
        bench = subprocess.Popen(
            [
                *[str(EXECUTABLE), "bench", "--server", server.url, "--writers", "2"],
                *["--batch", "100", "--seconds", "60"],
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            seen = terminal.wait_for(
                lambda screen: re.search(r"^bench-\w+ +[1-9]", screen, re.MULTILINE), "its rate"
            )
        finally:
            bench.send_signal(signal.SIGINT)
            bench.wait(20)
        first = next(line for line in seen.splitlines() if line.startswith("bench-"))
        assert seen.splitlines()[5] == first, "the busiest is on top"
        terminal.wait_for(lambda screen: "bench-" not in screen, "its end")


@needs_tmux
@pytest.mark.usefixtures("load")
def test_top_stands_still_while_it_is_paused(server: ServerProcess) -> None:
    with Terminal(top(server)) as terminal:
        terminal.wait_for(lambda screen: rate_of(screen, "shop/orders") > 0, "a rate")
        terminal.press("p")
        still = terminal.wait_for(lambda screen: "PAUSED" in screen, "the pause")
        shown = before = counted(server)
        while shown < before + 50:
            shown = counted(server)
        assert figures_of(terminal.screen()) == figures_of(still)
        terminal.press("p")
        terminal.wait_for(
            lambda screen: "PAUSED" not in screen and figures_of(screen) != figures_of(still),
            "newer figures",
        )


def figures_of(screen: str) -> list[str]:
    """The screen without the line that says how it is with top itself."""
    lines = screen.splitlines()
    return lines[:STATUS_LINE] + lines[STATUS_LINE + 1 :]


def counted(server: ServerProcess) -> int:
    """What was appended to a stream that is being written to."""
    params = {"prefix": "shop/orders"}
    answer = httpx.get(f"{server.url}/v1/streams", params=params, trust_env=False)
    found: int = answer.json()["streams"][0]["appended_records"]
    return found


@needs_tmux
@pytest.mark.usefixtures("load")
def test_top_fits_a_terminal_that_is_resized(server: ServerProcess) -> None:
    with Terminal(top(server), width=200) as terminal:
        terminal.wait_for(lambda screen: "writers" in screen and "tail" in screen, "all columns")
        terminal.resize(60, 12)
        terminal.wait_for(
            lambda screen: (
                "writers" not in screen
                and len(streams_on(screen)) == 5
                and "q quit" in screen.splitlines()[11]
            ),
            "fewer columns, the keys in the last line",
        )
        terminal.resize(120, 30)
        terminal.wait_for(lambda screen: "q quit" in screen.splitlines()[29], "all 30 lines")


@needs_tmux
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_top_leaves_the_terminal_as_it_was(server: ServerProcess, number: signal.Signals) -> None:
    with Terminal(f"echo $$ is the shell; {top(server, then='stty -a;')}") as terminal:
        terminal.wait_for(lambda screen: "bottomless top" in screen, "the screen")
        shell = int(terminal.ask("pane_pid"))
        (child,) = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        os.kill(int(child), number)
        seen = terminal.wait_for(lambda screen: "-echo" in screen or " echo " in screen, "stty")
        assert f"ended with {128 + number}" in seen
        assert "is the shell" in seen, "the screen of before"
        assert re.search(r"(?<!-)icanon.* (?<!-)echo ", seen, re.DOTALL)
        assert "susp = ^Z" in seen
        assert (terminal.ask("alternate_on"), terminal.ask("cursor_flag")) == ("0", "1")


@needs_tmux
def test_top_goes_on_when_the_server_is_back(tmp_path: Path) -> None:
    with (
        ServerProcess.start(tmp_path / "root") as own,
        Load(own, "orders"),
        Terminal(top(own)) as terminal,
    ):
        terminal.wait_for(lambda screen: rate_of(screen, "orders") > 0, "a rate")
        own.kill9()
        terminal.wait_for(lambda screen: "no answer, trying again (2)" in screen, "the loss")
        own.restart()
        seen = terminal.wait_for(
            lambda screen: "no answer" not in screen and rate_of(screen, "orders") > 0,
            "a rate again",
        )
        # What recovery found in the log is no load: the writer appends about a hundred a second.
        assert rate_of(seen, "orders") < 10_000


@needs_tmux
def test_top_waits_for_a_server_that_is_not_there_yet(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "root") as own, Terminal(top(own)) as terminal:
        terminal.wait_for(lambda screen: "no answer, trying again" in screen, "the missing server")
        own.spawn()
        terminal.wait_for(lambda screen: "no streams" in screen, "its figures")


@needs_tmux
@pytest.mark.usefixtures("load")
def test_top_on_a_terminal_that_cannot_be_drawn_on_is_a_table(server: ServerProcess) -> None:
    with Terminal(f"TERM=dumb {top(server)}") as terminal:
        seen = terminal.wait_for(lambda screen: "ended with 0" in screen, "the end")
        assert len(streams_on(seen)) == 5


@needs_tmux
def test_top_without_a_token_says_so_on_the_terminal_of_before(guarded: Guarded) -> None:
    with Terminal(top(guarded.server)) as terminal:
        seen = terminal.wait_for(lambda screen: "ended with 4" in screen, "the refusal")
        assert "bottomless: " in seen
        assert terminal.ask("alternate_on") == "0"


# Scripts.


def run(server_url: str, *flags: str, wait_s: float = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *[str(EXECUTABLE), "top", "--server", server_url, "-i", "0.4"],
            *["--wait", str(wait_s), *flags],
        ],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=30,
    )


@pytest.mark.usefixtures("load")
def test_top_once_as_a_table_also_where_there_is_no_terminal(server: ServerProcess) -> None:
    for flags in (["--once"], []):
        done = run(server.url, *flags)
        assert (done.returncode, done.stderr) == (0, "")
        assert rate_of(done.stdout, "shop/orders") > 0
        assert len(streams_on(done.stdout)) == 5
        assert "\x1b" not in done.stdout
    cut = run(server.url, "--once", "--limit", "3", "-n", "2").stdout.splitlines()
    assert "2 shown, of the latest 3: there are more" in cut[0]
    assert len(cut) == 4


@pytest.mark.usefixtures("load")
def test_top_once_for_programs(server: ServerProcess) -> None:
    document = json.loads(run(server.url, "--once", "-o", "json", "--sort", "name").stdout)
    assert document["total"]["records_per_s"] > 0
    assert document["total"].keys() >= {"bytes_per_s", "streams", "readers", "commit_lag_ms"}
    rows = {row["name"]: row for row in document["streams"]}
    assert list(rows) == ["other", "shop/idle", "shop/orders", "web/hits", "web/idle"]
    assert rows["shop/orders"]["records_per_s"] > 0 < rows["shop/orders"]["bytes_per_s"]
    assert rows["shop/orders"]["writers"] == 1
    assert rows["other"]["records_per_s"] == 0

    text = run(server.url, "--once", "-o", "csv", "--filter", "^web/", "--sort", "name").stdout
    table = list(csv.DictReader(io.StringIO(text)))
    assert [row["name"] for row in table] == ["web/hits", "web/idle"]
    assert float(table[0]["records_per_s"]) > 0
    assert run(server.url, "--once", "-o", "raw", "--filter", "oth").stdout == "other\n"


def test_top_that_cannot_says_why() -> None:
    nobody = run(f"http://127.0.0.1:{free_port()}", "--once")
    assert (nobody.returncode, "no answer" in nobody.stderr) == (5, True)
    column = run("http://127.0.0.1:1", "--sort", "colour")
    assert (column.returncode, "rec/s" in column.stderr) == (2, True)


def test_top_once_waits_for_a_server_that_is_starting(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "root") as own:
        own.spawn()
        done = run(own.url, "--once", "-o", "json", wait_s=20)
    assert (done.returncode, json.loads(done.stdout)["streams"]) == (0, [])


# What the server tells.


@pytest.fixture
def ask(server: ServerProcess) -> Iterator[Callable[..., httpx.Response]]:
    with httpx.Client(base_url=server.url, trust_env=False, timeout=20) as client:
        yield lambda **params: client.get("/v1/streams", params=params)


def test_list_is_what_the_schema_says(ask: Callable[..., httpx.Response]) -> None:
    answer = ask(limit=1)
    assert answer.headers["content-type"] == "application/json"
    page = answer.json()
    StreamPage.model_validate(page, strict=True)
    assert page.keys() == StreamPage.model_fields.keys()
    for entry in page["streams"]:
        assert entry.keys() == StreamEntry.model_fields.keys()


@pytest.mark.usefixtures("load")
def test_list_of_the_newest_is_one_page(ask: Callable[..., httpx.Response]) -> None:
    page = ask(order="newest", limit=2).json()
    assert {entry["name"] for entry in page["streams"]} == {"shop/orders", "web/hits"}
    assert (page["next"], page["has_more"]) == (None, True)
    assert ask(order="newest", contains="idle").json()["has_more"] is False
    assert [entry["name"] for entry in ask(contains="idle").json()["streams"]] == [
        *["shop/idle", "web/idle"]
    ]
    for params in ({"order": "newest", "after": "a"}, {"order": "size"}):
        answer = ask(**params)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


def test_list_counts_who_reads_live_and_tells_incarnations_apart(
    server: ServerProcess, ask: Callable[..., httpx.Response]
) -> None:
    def row() -> dict[str, Any]:
        found: dict[str, Any] = ask(prefix="read-live").json()["streams"][0]
        return found

    path = "/v1/stream/read-live"
    with httpx.Client(base_url=server.url, trust_env=False, timeout=20) as client:
        client.put(path, headers=JSON)
        before = row()
        with client.stream("GET", f"{path}?offset=-1&live=sse") as live:
            # Held: an iterator that is dropped ends the connection.
            events = live.iter_raw()
            next(events)
            assert (before["readers"], row()["readers"]) == (0, 1)
        client.delete(path)
        client.put(path, headers=JSON)
        assert row()["id"] != before["id"]
        client.delete(path)
