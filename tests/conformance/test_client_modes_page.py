"""What docs/consumers.md shows runs, and what it says about sizes is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bottomless
from tests.support.wire import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parents[2] / "docs" / "consumers.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ADDRESS = "http://127.0.0.1:4437"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("page")) as server:
        yield server.url


def test_consumers_page_examples_run(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLES) == 5
    with bottomless.connect(url) as client:
        client.create("orders")
        client.append("orders", *range(5))
        client.close("orders")
        names = {"bottomless": bottomless, "client": client}
        for example in EXAMPLES:
            assert ADDRESS in example or "client." in example
            exec(compile(example.replace(ADDRESS, url), "docs/consumers.md", "exec"), dict(names))
    said = capsys.readouterr().out
    for word in ("billed", "packed", "shipped"):
        assert [line for line in said.splitlines() if line.startswith(word)] == [
            f"{word} {number}" for number in range(5)
        ]
    assert "5 records in finished ranges" in said
    assert "behind by 0.0 seconds" in said


def test_consumers_page_tells_the_options_and_their_defaults() -> None:
    for options in (bottomless.ResumableOptions(), bottomless.MemberOptions()):
        for name in type(options).__slots__:
            assert f"`{name}`" in PAGE, name
    for name, value in (
        ("commit_records", bottomless.ResumableOptions().commit_records),
        ("commit_s", bottomless.ResumableOptions().commit_s),
        ("range_records", bottomless.MemberOptions().range_records),
        ("lease_s", int(bottomless.MemberOptions().lease_s)),
    ):
        assert f"| `{name}` | {value} |" in PAGE


def test_consumers_page_tells_how_much_is_stored(url: str) -> None:
    with bottomless.connect(url) as client:
        client.create("sizes")
        client.append("sizes", *range(1000))
        with client.resumable("sizes", "x", commit_records=100, follow=False) as consumer:
            assert len(list(consumer)) == 1000
        with client.balanced("sizes", "x", range_records=10, follow=False) as member:
            assert len(list(member)) == 1000
        positions = client.read("_positions/x/sizes")
        assert len(positions) == 11
        assert max(len(record.data) for record in positions) <= 200
        entries = client.read("_groups/x/sizes")
        ranges = [one for one in entries if one.value["is"] in ("cut", "ask", "done")]
        assert sum(len(one.data) for one in ranges) / 100 <= 350
