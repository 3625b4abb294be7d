"""A server, or a job, that stops itself at a step: what a test needs to cut the power right there.

    python -m tests.faults.halting STEP NTH ARMED PRECAUTIONS PROGRAM ARGUMENTS...

Calls of the step are counted while the file ARMED exists; in the NTH the process sends itself
SIGSTOP and never goes on. PRECAUTIONS are taken away as in tests/faults/careless.py ("-": none).
The product has no switch for any of this; it is done to its classes from outside.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
import threading
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.faults.careless import PRECAUTIONS

STORAGE = "engine.storage:LocalStorage"
TRIMMER = "engine.write.trimmer:Trimmer"
REWRITER = "jobs.common.rewrite:Rewriter"
JOBS = ("compact", "retain")


@dataclass(frozen=True, slots=True)
class Step:
    """A method, and whether the process stops before or after it has done its work."""

    place: str
    method: str
    paths: str = ""
    """Only calls whose arguments, as Python writes them, hold this expression."""
    is_before: bool = False


# A record's way in, in the order of its steps.
WRITE_STEPS = {
    "the frame is written, not synced": Step(STORAGE, "write"),
    "the WAL is synced, nobody was answered": Step(STORAGE, "sync"),
    "a segment is begun": Step(STORAGE, "open_append"),
    "the data file is written, its entry is not": Step(STORAGE, "put_file"),
    "the entry is put, not synced": Step(STORAGE, "put_if_absent", "_delta_log/"),
    "the tables are synced, the snapshot is old": Step(STORAGE, "sync_all"),
    "the snapshot is replaced, nothing is trimmed": Step(STORAGE, "replace", "_wal/snapshot"),
    "a segment is removed, the next is not": Step(STORAGE, "remove", "_wal/"),
    "the WAL is trimmed": Step(TRIMMER, "_remove", r"\d"),
    "a checkpoint is written, not synced": Step(
        STORAGE, "sync_path", r"\.checkpoint\.parquet", is_before=True
    ),
    "a checkpoint is synced, the log is not cleaned": Step(STORAGE, "sync_path", "_delta_log'"),
    "a deleted table is moved, not removed": Step(STORAGE, "rename", "_trash/"),
}
# A start after a cut.
START_STEPS = {
    "a torn commit is put aside": Step(STORAGE, "rename", "_aside/"),
    "the end of the WAL is written again": Step(STORAGE, "replace", r"\.wal"),
    "what was found is synced": Step(STORAGE, "sync_all"),
}
# A rewrite, and what removes the files it has replaced.
COMPACT_STEPS = {
    "Spark has written, nothing is moved": Step(REWRITER, "_write"),
    "the files are moved, not synced": Step(REWRITER, "_move"),
    "the files are synced, their entry is not put": Step(STORAGE, "sync_all"),
    "the entry of the rewrite is put, not synced": Step(STORAGE, "put_if_absent", "_delta_log/"),
}
RETAIN_STEPS = {
    "the entry of the trim is put, not synced": Step(STORAGE, "put_if_absent", "_delta_log/"),
    "all is synced, no replaced file is removed": Step(STORAGE, "sync_all"),
    "a replaced file is removed, the next is not": Step(STORAGE, "remove", r"\.parquet"),
}
STEPS = WRITE_STEPS | START_STEPS | COMPACT_STEPS | RETAIN_STEPS


def halt_at(step: Step, nth: int, armed: Path) -> None:
    """Replace the method by one that stops the process in the nth call."""
    module, name = step.place.split(":")
    owner = getattr(import_module(module), name)
    method, lock, seen = getattr(owner, step.method), threading.Lock(), []

    def count(arguments: tuple[Any, ...]) -> None:
        if not re.search(step.paths, repr(arguments)) or not armed.exists():
            return
        with lock:
            seen.append(arguments)
            if len(seen) < nth:
                return
            os.kill(os.getpid(), signal.SIGSTOP)
            # The signal may reach another thread first; this one is past its last step either way.
            threading.Event().wait()

    @functools.wraps(method)
    def halting(self: object, *arguments: Any) -> Any:
        if step.is_before:
            count(arguments)
        result = method(self, *arguments)
        if not step.is_before:
            count(arguments)
        return result

    setattr(owner, step.method, halting)


def main() -> None:
    """Arrange for the stop, then be the program."""
    name, nth, armed, careless, program, *arguments = sys.argv[1:]
    for precaution in careless.split(",") if careless != "-" else ():
        PRECAUTIONS[precaution]()
    halt_at(STEPS[name], int(nth), Path(armed))
    if program in JOBS:
        sys.exit(import_module(f"jobs.{program}").main(arguments))
    from bottomless.cli import main as bottomless

    sys.argv = [program, *arguments]
    bottomless()


if __name__ == "__main__":
    main()
