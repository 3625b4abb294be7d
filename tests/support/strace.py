"""strace in front of a server: calls that fail, come late, or are the last thing a process does.

The server stays the direct child of the test (``strace -D`` puts the tracer aside), so that signals
and exit codes are its own. Counters of ``when=`` are per thread *and* per system call: with ``-f``
the first thread that comes to its N-th call is hit, not the N-th call of the process.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_CALL = re.compile(r"^(\d+)\s+(\w+)\((.*)")
_INJECTED = "(INJECTED)"


def strace_or_skip() -> str:
    """The program; skips where it is missing or may not trace."""
    found = shutil.which("strace")
    if found is None:
        pytest.skip("strace is not here: run `make fault-tools`")
    # A child may trace its parent's other children only with the right to trace anybody.
    if os.geteuid() != 0:
        pytest.skip("strace -D needs root")
    return found


def strace_wrapper(
    log: Path, *injections: str, trace: str = "", paths: tuple[Path, ...] = ()
) -> tuple[str, ...]:
    """The command for ``ServerProcess(wrapper=…)``.

    ``injections`` are written as strace wants them, e.g. ``fdatasync:error=EIO:when=3``,
    ``fdatasync:delay_enter=500000``, ``rename,link:signal=KILL:when=2``; what is injected is traced
    too. ``paths`` are exact: nothing else is traced or hit. ``log`` gets one line per call.
    """
    calls = {name for injection in injections for name in injection.split(":")[0].split(",")}
    traced = ",".join(sorted(calls | {name for name in trace.split(",") if name}))
    assert traced, "there is nothing to trace"
    command = [strace_or_skip(), "-D", "-f", "-qq", "-y", "-s", "0"]
    # With it only these calls stop the process and the rest runs at full speed, but strace 6.1 then
    # sends no signal.
    if not any(":signal=" in injection for injection in injections):
        command.append("--seccomp-bpf")
    command += ["-o", str(log), "-e", f"trace={traced}", "-e", "signal=none"]
    for injection in injections:
        command += ["-e", f"inject={injection}"]
    for path in paths:
        command += ["-P", str(path)]
    return (*command, "--")


@dataclass(frozen=True, slots=True)
class Call:
    """One line of the log: what follows the name is as strace writes it."""

    thread: int
    name: str
    rest: str

    @property
    def is_injected(self) -> bool:
        """strace has changed its outcome or delayed it."""
        return _INJECTED in self.rest or "(DELAYED)" in self.rest


def calls_in(log: Path) -> list[Call]:
    """The calls in the order in which they began; the end of an interrupted one is left out."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    found = [match for line in lines if (match := _CALL.match(line))]
    return [Call(int(match[1]), match[2], match[3]) for match in found]
