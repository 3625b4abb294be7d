"""What the jobs beside the server did last: one small file below the root.

`maintain` writes it, the server shows it in its metrics; neither needs the other to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from engine import metrics

if TYPE_CHECKING:
    from engine.storage import Storage

JOBS_FOLDER: Final = "_jobs"
STATUS_PATH: Final = f"{JOBS_FOLDER}/status.json"


class JobStatus(msgspec.Struct):
    """One verb: when it last succeeded, how much is left to do."""

    succeeded_ms: int = 0
    failures: int = 0
    lag_streams: int = 0
    """Streams that still need the job."""
    lag: int = 0
    """For compact: small files that are still to be joined; for index: commits not indexed."""


class MaintainStatus(msgspec.Struct):
    """Every verb, and the last round of maintain."""

    round_ms: int = 0
    round_seconds: float = 0.0
    visited_ms: int = 0
    """When the last round ended in which `retain` visited every stream."""
    jobs: dict[str, JobStatus] = {}


def load_status(storage: Storage) -> MaintainStatus:
    """What was written last; empty where nothing was."""
    try:
        return msgspec.json.decode(storage.read(STATUS_PATH), type=MaintainStatus)
    except (OSError, msgspec.DecodeError):
        return MaintainStatus()


def save_status(storage: Storage, status: MaintainStatus) -> None:
    """Put the file in place."""
    storage.make_folder(JOBS_FOLDER)
    storage.replace(STATUS_PATH, msgspec.json.encode(status))


def show_status(status: MaintainStatus) -> None:
    """Into the metrics."""
    if status.round_ms:
        metrics.maintain_last_round.set(status.round_ms / 1000)
        metrics.maintain_round_seconds.set(status.round_seconds)
    for job, state in status.jobs.items():
        if state.succeeded_ms:
            metrics.job_last_success.labels(job=job).set(state.succeeded_ms / 1000)
        metrics.job_failures.labels(job=job).set(state.failures)
        metrics.job_lag_streams.labels(job=job).set(state.lag_streams)
        metrics.job_lag.labels(job=job).set(state.lag)
