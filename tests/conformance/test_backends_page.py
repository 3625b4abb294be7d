"""What docs/backends.md shows works, word for word but for the addresses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import bottomless
from tests.support.wire import serving

if TYPE_CHECKING:
    import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "backends.md").read_text()


def test_backends_page_example_runs(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with (
        serving(tmp_path_factory.mktemp("page")) as server,
        bottomless.connect(server.url) as client,
    ):
        with client.producer("orders") as producer:
            for number in range(3):
                producer.append({"id": number})
        example = example.replace("http://127.0.0.1:4437", server.url)
        example = example.replace("file:///tmp", f"file://{tmp_path}")
        exec(compile(example, "docs/backends.md", "exec"), {})
    assert (tmp_path / "orders").read_bytes() == b'{"id":0}\n{"id":1}\n{"id":2}\n'
    with bottomless.connect(f"file://{tmp_path}/shop.ss") as files:
        assert [record.value["id"] for record in files.read("orders")] == [0, 1, 2]
