"""A job in processes of its own, to be killed: the driver, and the JVM where it has one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.load import wait_for

CLONE = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 300.0


class JobProcess:
    """`spark-submit jobs/VERB.py` in a process group of its own, with an empty environment."""

    def __init__(self, verb: str, root: Path, *flags: str) -> None:
        self.log_path = root.with_name(f"{root.name}.{verb}.log")
        self._root = root
        self._staged = self._staging()
        # What needs no JVM is started without one: it is at work, and killed, sooner.
        program = "spark-submit" if verb == "compact" else "python"
        command = [str(Path(sys.executable).parent / program), f"jobs/{verb}.py"]
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME")}
        with self.log_path.open("ab") as log:
            self._child = subprocess.Popen(
                [*command, "--root", str(root), *flags],
                cwd=CLONE,
                env=kept,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _staging(self) -> set[Path]:
        return set(self._root.glob("*/_staging/*"))

    def wait_begun(self) -> None:
        """Return when Spark has begun to write, or the job has ended without."""
        wait_for(
            lambda: self._child.poll() is not None or bool(self._staging() - self._staged),
            f"the rewrite ({self.log_path})",
            START_TIMEOUT_S,
        )

    def wait_opened(self) -> None:
        """Return when the job has opened the root, or has ended."""
        folder, root = Path(f"/proc/{self._child.pid}/fd"), self._root.resolve()

        def has_opened() -> bool:
            if self._child.poll() is not None:
                return True
            # Descriptors come and go while they are looked at.
            with contextlib.suppress(FileNotFoundError):
                return any(link.readlink() == root for link in folder.iterdir())
            return False

        wait_for(has_opened, f"the root to be opened ({self.log_path})", START_TIMEOUT_S)

    def wait(self) -> int:
        """The exit code."""
        return self._child.wait(START_TIMEOUT_S)

    def kill9(self) -> bool:
        """End JVM and Python at once; False if they had ended before."""
        is_alive = self._child.poll() is None
        if is_alive:
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait(START_TIMEOUT_S)
        return is_alive
