"""The README's tour, run as it stands there: every command, every line of output."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from deltalake import DeltaTable

from tests.support.server import POLL_INTERVAL_S, ServerProcess

ROOT = Path(__file__).resolve().parents[2]
COMMIT_DEADLINE_S = 20
RECORDS = 3
# What differs from run to run: offsets and the cursor.
VARYING = (
    (re.compile(r"\d{16}_\d{16}"), "OFFSET"),
    (re.compile(r"\b\d{32}\b"), "OFFSET"),
    (re.compile(r'"streamCursor":"\d+"'), '"streamCursor":"N"'),
)


def test_readme_tour_shows_real_output(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    tour = text[text.index("## Five-minute tour") : text.index("## More")]
    blocks = list(re.finditer(r"```console\n(.*?)```", tour, re.DOTALL))
    assert len(blocks) >= 5
    # The server's root stands where `make run` would put it, seen from the folder of the commands.
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    with ServerProcess.start(tmp_path / "data") as server:
        end = 0
        for block in blocks:
            if "kill the server" in tour[end : block.start()]:
                server.kill9()
                server.restart()
            if "DeltaTable" in block[1]:
                wait_for_table(tmp_path / "data" / "orders")
            end = block.end()
            for command, expected in steps(block[1]):
                shown = run(command, server.port, tmp_path)
                assert blur(shown) == blur(expected), command
        assert server.terminate() == 0


def steps(block: str) -> list[tuple[str, str]]:
    """Commands (with their continuation lines) and the output below each."""
    found: list[tuple[list[str], list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(([line[2:]], []))
        elif line.startswith("> ") and not found[-1][1]:
            found[-1][0].append(line[2:])
        else:
            found[-1][1].append(line)
    return [("\n".join(command), "\n".join(output)) for command, output in found]


def run(command: str, port: int, folder: Path) -> str:
    """Run in bash with the tour's variables set; standard output without the last line break.

    The tour's server is the one that `bottomless` asks by default; this one has another port.
    """
    server = f"http://127.0.0.1:{port}"
    kept = f'S={server}/v1/stream PATH="$PWD/.venv/bin:$PATH"; export BOTTOMLESS_SERVER={server}\n'
    script = kept + command.replace(":4437", f":{port}")
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == "", done.stderr
    return done.stdout.removesuffix("\n")


def blur(text: str) -> str:
    """The text without what differs from run to run."""
    for pattern, name in VARYING:
        text = pattern.sub(name, text)
    return text


def wait_for_table(folder: Path) -> None:
    """Poll until all three records are committed."""
    deadline = time.monotonic() + COMMIT_DEADLINE_S
    while not DeltaTable.is_deltatable(str(folder)) or rows_of(folder) < RECORDS:
        assert time.monotonic() < deadline, "the commit did not come"
        time.sleep(POLL_INTERVAL_S)


def rows_of(folder: Path) -> int:
    """Rows of the newest version."""
    return DeltaTable(folder).to_pyarrow_table(columns=["offset"]).num_rows
