"""Looks at a server that is slow, away, or not ours."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from bottomless.errors import DataDamaged, NotAllowed, Unavailable
from bottomless.top.watch import Watch
from bottomless.transport import NoAnswer
from tests.unit.test_top_model import sample, stream

if TYPE_CHECKING:
    from bottomless.top.model import Sample


class Server:
    """Answers what it was given, and notes what it is asked for."""

    def __init__(self, *answers: Sample | Exception) -> None:
        self.asked: list[str] = []
        self._answers = list(answers)
        self.typed: list[str] = []
        """The filters that are typed while an answer is on its way."""
        self.name_filter = ""

    async def look(self, name_filter: str) -> Sample:
        self.asked.append(name_filter)
        if self.typed:
            self.name_filter = self.typed.pop(0)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def watched(self) -> Watch:
        return Watch(self, lambda: self.name_filter, 0.01)


async def test_watch_keeps_the_last_figures_while_there_is_no_answer():
    gone = NoAnswer("no answer from http://s: refused")
    server = Server(
        gone,
        sample(1, stream(records=1)),
        gone,
        Unavailable("the server is starting"),
        sample(5, stream(records=9)),
    )
    watch = server.watched()
    told = []
    for _ in range(5):
        await watch.look()
        told.append((watch.trouble, watch.board and watch.board.rows[0].rates.records_s))
    assert told == [
        ("no answer, trying again (1)", None),
        ("", None),
        ("no answer, trying again (1)", None),
        ("the server is starting, trying again (2)", None),
        ("", 2.0),
    ]


async def test_watch_does_not_show_the_streams_of_a_filter_that_was_taken_back():
    """Found by a key that marked the wrong stream: for a moment there were only two."""
    server = Server(
        sample(1, stream("a"), stream("b")),
        sample(2, stream("a"), scope="a"),
        sample(3, stream("a"), stream("b", records=5)),
    )
    watch = server.watched()
    await watch.look()
    server.name_filter, server.typed = "a", [""]
    await watch.look()
    assert watch.board is not None
    assert (server.asked, len(watch.board.rows)) == (["", "a"], 2)
    await watch.look()
    assert [row.rates.records_s for row in watch.board.rows] == [0, 2.5]


@pytest.mark.parametrize("error", [NotAllowed("no token"), DataDamaged("not ours")])
async def test_watch_gives_up_where_no_patience_helps(error: Exception):
    with pytest.raises(type(error)):
        await Server(error).watched().look()


async def test_watch_goes_on_over_one_damaged_answer_but_not_over_a_refusal():
    watch = Server(sample(1), DataDamaged("cut off"), NotAllowed("revoked")).watched()
    await watch.look()
    await watch.look()
    assert "cut off" in watch.trouble
    with pytest.raises(NotAllowed):
        await watch.look()


async def test_watch_rests_as_long_as_a_look_takes():
    """A server that needs long for a list is not asked all the time."""
    loop = asyncio.get_running_loop()
    begins: list[float] = []
    ends: list[float] = []

    class Slow(Server):
        async def look(self, name_filter: str) -> Sample:
            begins.append(loop.time())
            await asyncio.sleep(0.1)
            ends.append(loop.time())
            return sample(loop.time())

    task = asyncio.create_task(Slow().watched().run(lambda: None))
    while len(begins) < 3:
        assert not task.done()
        await asyncio.sleep(0.01)
    task.cancel()
    assert [begins[i + 1] - ends[i] >= 0.09 for i in range(2)] == [True, True]
