"""A disk whose power a test may cut: an ext4 file system in a file, mounted through a loop device.

The cut is the kernel's own: the ioctl FS_IOC_SHUTDOWN drops everything that no sync has made
durable, names in folders too. Whoever writes is stopped before, for an fdatasync that is under way
at that moment would be told that all is well. The file itself lies on a disk that keeps its power.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.load import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1 << 20
# Sparse: only what is written takes room.
DISK_MIB = 4096
# From <linux/fs.h>, <linux/ext4.h> and <linux/loop.h>.
FS_IOC_SHUTDOWN = 0x8004587D
GOING_FLAGS_NOLOGFLUSH = 2
LOOP_CTL_GET_FREE = 0x4C82
LOOP_MAJOR = 7
CAP_SYS_ADMIN = 21
ATTEMPTS = 10
# A stopped process has no thread left that can act: stopped, or in the kernel and not coming back
# before it is killed.
HALTED_STATES = frozenset("TtDZX")
# One that is to go on has no call under way either.
PAUSED_STATES = frozenset("TtZX")
SUPERUSER_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


class LoopDisk:
    """One file system on one loop device; `mount_point` is where it is mounted, or will be again.

    `folder` is not on it: a place for what must survive, e.g. the server's log. The file lies in
    `below`, or there.
    """

    def __init__(self, folder: Path, *, mib: int = DISK_MIB, below: Path | None = None) -> None:
        self.folder = folder
        self.image = (below or folder) / "disk.img"
        self.mount_point = folder / "disk"
        self._mib = mib
        self._is_thin = below is not None
        self._device: str | None = None

    def make(self) -> None:
        """Create the file and the file system, and mount it."""
        self.mount_point.mkdir(parents=True)
        with self.image.open("wb") as image:
            image.truncate(self._mib * MIB)
        # Nothing is left to be written later by the kernel on its own.
        now = "nodiscard,lazy_itable_init=0,lazy_journal_init=0"
        # Blocks as large as a page of what lies below: each new one needs new room there.
        run("mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-E", now, "-J", "size=4", self.image)
        self.mount()

    def back_metadata(self) -> None:
        """Give journal and inode tables their room for ever, and take it from what is free.

        When what lies below is full, data cannot be written then, but ext4 itself goes on.
        """
        self.unmount()
        self.image.write_bytes(self.image.read_bytes())
        self.mount()
        run("fstrim", self.mount_point)

    def mount(self) -> None:
        """Mount it; the journal is replayed, as it is after a power cut."""
        assert self._device is None, "it is mounted"
        self._device = attach(self.image)
        if self._is_thin:
            # A request of which the first page has room and the second has not is reported by the
            # loop driver as done: that disk would lie, not fail. So one page a request.
            queue = Path("/sys/block") / Path(self._device).name / "queue"
            (queue / "max_sectors_kb").write_text("4")
        run("mount", "-t", "ext4", "-o", "noatime", self._device, self.mount_point)

    def unmount(self) -> None:
        """Unmount it and wait until its loop device is free; memory holds nothing of it then."""
        device = self._device
        assert device is not None, "it is not mounted"
        # What a dying process had open may take a moment to be closed.
        wait_for(lambda: is_done("umount", self.mount_point), f"umount of {device}")
        detach(device, self.image)
        self._device = None

    def remount(self) -> None:
        """Forget what memory holds of it: from here on there is only what the disk holds."""
        self.unmount()
        self.mount()

    def shut_down(self) -> None:
        """From this moment on nothing reaches the disk any more, not even the journal."""
        descriptor = os.open(self.mount_point, os.O_RDONLY)
        try:
            flags = GOING_FLAGS_NOLOGFLUSH.to_bytes(4, "little")
            fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, flags)
        finally:
            os.close(descriptor)

    def cut(self, pids: list[int], end: Callable[[], None]) -> None:
        """A power cut: `pids` are all that write to the disk, `end` kills them."""
        halt(pids)
        self.shut_down()
        end()
        self.remount()

    def abort(self, pids: list[int]) -> None:
        """What ext4 does where it meets an error and errors=remount-ro is set: every write fails
        with EROFS, also through descriptors that are open for writing (remount,ro is refused then).

        `pids` are all that write to the disk: an fdatasync that is under way while the journal is
        aborted may be told that all is well although nothing was written (seen on Linux 6.18 with
        a plain C program; no file system call tells the truth in that moment).
        """
        pause(pids)
        run("mount", "-o", "remount,abort", self.mount_point)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    @property
    def is_writable(self) -> bool:
        """Whether ext4 has not given up on it."""
        try:
            with tempfile.TemporaryFile(dir=self.mount_point):
                return True
        except OSError:
            return False

    def sync(self) -> None:
        """Everything that was written so far reaches the disk."""
        run("sync", "-f", self.mount_point)

    def sync_something(self) -> None:
        """Another program syncs a file of its own: the names of all others reach the disk with the
        journal, the data of none.
        """
        path = self.mount_point / "other program"
        with path.open("w") as file:
            file.write("synced")
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Leave nothing mounted or attached, whatever has happened before."""
        if self._device is None:
            return
        try:
            self.unmount()
        except AssertionError:
            with contextlib.suppress(OSError):
                self.shut_down()
            is_done("umount", "-l", self.mount_point)
            is_done("losetup", "-d", self._device)
            self._device = None


def halt(pids: list[int]) -> None:
    """SIGSTOP, and wait until no thread of them is in a state to act on what a call returns."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: all(is_halted(pid) or is_over(pid) for pid in pids), f"the stop of {pids}")


def pause(pids: list[int]) -> None:
    """SIGSTOP, and wait until every call that was under way has ended; SIGCONT lets them go on."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: all(is_halted(pid, PAUSED_STATES) for pid in pids), f"the pause of {pids}")


def is_halted(pid: int, states: frozenset[str] = HALTED_STATES) -> bool:
    """Whether the process, with every thread of it, is stopped."""
    found = [state_of(task) for task in Path(f"/proc/{pid}/task").glob("*")]
    return states.issuperset(found) and state_of(Path(f"/proc/{pid}")) in "Tt"


def is_over(pid: int) -> bool:
    """Whether the process has ended, and may wait for its parent to notice."""
    return state_of(Path(f"/proc/{pid}")) in "ZX"


def state_of(process: Path) -> str:
    """The letter behind the name in /proc/.../stat; X where it is gone."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def attach(image: Path) -> str:
    """Connect the file with a loop device that nobody else uses, and name it."""
    for _ in range(ATTEMPTS):
        make_node()
        done = run_quietly("losetup", "--find", "--show", image)
        if done.returncode == 0:
            return done.stdout.strip()
        # Somebody else was faster: the next one.
        threading.Event().wait(0.1)
    raise AssertionError(f"no loop device: {done.stderr}")


def make_node() -> None:
    """Where /dev is not kept up by the kernel, the node of the next free device may be missing."""
    control = os.open("/dev/loop-control", os.O_RDWR)
    try:
        number = fcntl.ioctl(control, LOOP_CTL_GET_FREE)
    finally:
        os.close(control)
    node = Path(f"/dev/loop{number}")
    if not node.exists():
        with contextlib.suppress(FileExistsError):
            os.mknod(node, 0o60660, os.makedev(LOOP_MAJOR, number))


def detach(device: str, image: Path) -> None:
    """Disconnect, and wait until it is true: the kernel does it when the last user is gone."""
    is_done("losetup", "-d", device)
    wait_for(lambda: not run("losetup", "-j", image).strip(), f"the end of {device}")


def run(*command: str | Path) -> str:
    """Run to success; what it printed."""
    done = run_quietly(*command)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def is_done(*command: str | Path) -> bool:
    """Run; whether it succeeded."""
    return run_quietly(*command).returncode == 0


def run_quietly(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run, and look for tools where only the superuser has them on the path."""
    program = shutil.which(command[0], path=SUPERUSER_PATH) or command[0]
    return subprocess.run(
        [program, *command[1:]], capture_output=True, text=True, check=False, timeout=60
    )


@contextlib.contextmanager
def loop_disk(
    folder: Path, *, mib: int = DISK_MIB, below: Path | None = None
) -> Iterator[LoopDisk]:
    """A disk for the length of a test; skips where this machine has no right or no tool for it."""
    require_loop_disks()
    disk = LoopDisk(folder, mib=mib, below=below)
    try:
        disk.make()
        yield disk
    finally:
        disk.close()


def require_loop_disks() -> None:
    """Skip where this machine has no right or no tool for them."""
    status = Path("/proc/self/status").read_text()
    [rights] = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff")]
    if not int(rights, 16) >> CAP_SYS_ADMIN & 1:
        pytest.skip("only the superuser may mount a file system")
    for tool in ("mkfs.ext4", "losetup", "mount", "umount"):
        if shutil.which(tool, path=SUPERUSER_PATH) is None:
            pytest.skip(f"{tool} is missing")
    if "ext4" not in Path("/proc/filesystems").read_text():
        pytest.skip("the kernel knows no ext4")
    try:
        make_node()
    except OSError as error:
        pytest.skip(f"no loop devices: {error.strerror}")
