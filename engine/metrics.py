"""Every metric: name, help and buckets. Updated once per group, commit or read, not per record."""

from __future__ import annotations

from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY: Final = CollectorRegistry(auto_describe=True)
_FAST: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_SLOW: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_COUNTS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 1000, 10_000, 100_000)


class Described(NamedTuple):
    """What the documentation says about a metric."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help_text: str


_described: Final[list[Described]] = []


def all_metrics() -> list[Described]:
    """Every metric, in the order of this file."""
    return list(_described)


def _describe(name: str, kind: str, help_text: str, labels: tuple[str, ...]) -> str:
    full_name = f"bottomless_{name}"
    _described.append(Described(full_name, kind, labels, help_text))
    return full_name


def _counter(name: str, help_text: str, *labels: str) -> Counter:
    return Counter(
        _describe(name, "counter", help_text, labels), help_text, labels, registry=REGISTRY
    )


def _gauge(name: str, help_text: str, *labels: str) -> Gauge:
    full_name = _describe(name, "gauge", help_text, labels)
    return Gauge(full_name, help_text, labels, registry=REGISTRY)


def _histogram(name: str, help_text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
    full_name = _describe(name, "histogram", help_text, labels)
    return Histogram(full_name, help_text, labels, registry=REGISTRY, buckets=buckets)


append_records = _counter("append_records_total", "Records made durable.")
append_bytes = _counter("append_bytes_total", "Payload bytes made durable.")
append_rejected = _counter("append_rejected_total", "Appends refused, by error code.", "code")
append_ack_seconds = _histogram(
    "append_ack_seconds", "From the first append of a group to its acknowledgement.", _FAST
)
append_batch_records = _histogram("append_batch_records", "Records of one group commit.", _COUNTS)
wal_bytes = _gauge("wal_bytes", "Bytes of all WAL segments.")
wal_fsync_seconds = _histogram("wal_fsync_seconds", "One write and fdatasync of a group.", _FAST)
queue_bytes = _gauge("queue_bytes", "Payload bytes waiting for the next group commit.")
commit_seconds = _histogram(
    "commit_seconds", "One Delta commit: Parquet file and log entry.", _SLOW
)
commits = _counter("commits_total", "Delta commits made by the engine.")
commit_failures = _counter("commit_failures_total", "Delta commits that failed and are retried.")
commit_lag_records = _gauge("commit_lag_records", "Durable records not yet in a Delta table.")
commit_lag_bytes = _gauge("commit_lag_bytes", "Payload bytes not yet in a Delta table.")
commit_lag_seconds = _gauge("commit_lag_seconds", "Age of the oldest record not yet committed.")
read_seconds = _histogram("read_seconds", "One chunk, by where it came from.", _FAST, "source")
read_bytes = _counter("read_bytes_total", "Payload bytes served.")
followers = _gauge("followers", "Live readers.", "transport")
streams = _gauge("streams", "Streams that exist.")
recovery_seconds = _gauge("recovery_seconds", "How long the last start-up recovery took.")
checkpoints = _counter("checkpoints_total", "Delta checkpoints written.")
storage_failures = _counter("storage_failures_total", "Failed writes and syncs.", "op")
maintain_last_round = _gauge(
    "maintain_last_round_timestamp_seconds", "When `maintain` last looked at every stream."
)
maintain_round_seconds = _gauge("maintain_round_seconds", "How long that round took.")
job_last_success = _gauge(
    "job_last_success_timestamp_seconds", "When a job last succeeded under `maintain`.", "job"
)
job_failures = _gauge("job_failures", "How often a job failed under `maintain`.", "job")
job_lag_streams = _gauge("job_lag_streams", "Streams that still need the job.", "job")
job_lag = _gauge("job_lag", "What is left to do: small files to compact, commits to index.", "job")
