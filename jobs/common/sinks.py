"""Where a replay goes: files, a Delta table, or another stream. Run twice = one copy."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self

import httpx

from engine.errors import Conflict, InvalidRequest, StorageUnavailable
from engine.types import PayloadKind
from jobs.common.transforms import as_csv, as_ndjson

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, Row

    from engine.clock import Clock
    from jobs.common.report import Step

FILE_FORMATS: Final = ("parquet", "ndjson", "csv")
MANIFEST: Final = "_replay.json"
_BATCH_RECORDS: Final = 1000
_BATCH_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 60.0
_ATTEMPTS: Final = 8
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


class OutputTaken(Conflict):
    """The target of a replay holds something else."""

    code = "output_taken"


@dataclass(frozen=True, slots=True)
class Request:
    """What makes two replays the same: the source, the range, the filters."""

    table_id: int
    facts: dict[str, str | None]

    @property
    def token(self) -> str:
        """The same for the same request; idempotent sinks use it as their name for this run."""
        text = json.dumps([self.table_id, self.facts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def output_folder(output: str, root: Path) -> Path:
    """The folder a replay may write; InvalidRequest where it would destroy streams."""
    if _URL.match(output):
        raise InvalidRequest(f"--output {output} is no folder", hint="A URL goes with --to stream.")
    target, root = Path(output).resolve(), root.resolve()
    if target == root or root in target.parents or target in root.parents:
        raise InvalidRequest(
            f"--output {output} would write over the data folder {root}",
            hint="Name a folder that is neither in it nor around it.",
        )
    return target


def write_files(
    rows: DataFrame, kind: PayloadKind, format_: str, target: Path, request: Request, *, over: bool
) -> bool:
    """Write a folder of files; False where this very replay is there already."""
    manifest = target / MANIFEST
    if target.exists() and not target.is_dir():
        raise OutputTaken(f"{target} is no folder", hint="Name another one.")
    if not over and target.exists() and any(target.iterdir()):
        if manifest.is_file() and json.loads(manifest.read_text())["token"] == request.token:
            return False
        raise OutputTaken(f"{target} is not empty", hint="Name another folder, or add --overwrite.")
    manifest.unlink(missing_ok=True)
    shaped = (
        {"ndjson": as_ndjson, "csv": as_csv}[format_](rows, kind)
        if format_ != "parquet"
        else (rows.select("offset", "flushed_at", "key", "data"))
    )
    writer = shaped.write.mode("overwrite")
    if format_ == "parquet":
        writer.parquet(str(target))
    elif format_ == "ndjson":
        writer.text(str(target))
    else:
        writer.options(header="true", escape='"', quoteAll="true", emptyValue="").csv(str(target))
    # Last: a run that was killed has no manifest, and the next one starts over.
    manifest.write_text(json.dumps({"token": request.token, **request.facts}) + "\n")
    return True


def write_delta(rows: DataFrame, target: Path, request: Request) -> None:
    """Append to a Delta table of the caller's; Delta itself drops the second copy."""
    (
        rows.select("offset", "flushed_at", "key", "data")
        .write.format("delta")
        .mode("append")
        .option("txnAppId", f"bottomless-replay-{request.token}")
        .option("txnVersion", "1")
        .save(str(target))
    )


class Pacer(Protocol):
    """Decides when a batch may go."""

    def wait(self, rows: list[Row]) -> None:
        """Block until the batch may be sent."""


class StreamSink:
    """Appends to another stream over HTTP as an idempotent producer.

    Batches are cut by the records alone, so a second run cuts the same ones and the server drops
    those it has.
    """

    def __init__(
        self, url: str, content_type: str, kind: PayloadKind, request: Request, *, token: str = ""
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidRequest(f"--output {url} is not a stream", hint="Give its http:// URL.")
        self._url = url
        self._content_type = content_type
        self._kind = kind
        self._producer = f"replay-{request.token}"
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(timeout=_TIMEOUT_S, trust_env=False, headers=headers)
        self.sent = 0
        self.known = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def write(self, rows: Iterator[Row], pacer: Pacer, step: Step, clock: Clock) -> None:
        """Send all rows in order."""
        self._call("PUT", "cannot be made", clock)
        for seq, batch in enumerate(self._batches(rows)):
            pacer.wait(batch)
            stamp = {
                "producer-id": self._producer,
                "producer-epoch": "0",
                "producer-seq": str(seq),
            }
            body = self._body(batch)
            if self._call("POST", "did not take a batch", clock, body, stamp) == 200:
                self.sent += len(batch)
            else:
                self.known += len(batch)
            step.done += len(batch)

    def _batches(self, rows: Iterator[Row]) -> Iterator[list[Row]]:
        if self._kind is not PayloadKind.JSON:
            # One append is one record in streams that are not JSON.
            yield from ([row] for row in rows)
            return
        batch: list[Row] = []
        size = 0
        for row in rows:
            batch.append(row)
            size += len(row.data)
            if len(batch) == _BATCH_RECORDS or size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _body(self, batch: list[Row]) -> bytes:
        if self._kind is PayloadKind.JSON:
            return f"[{','.join(row.data for row in batch)}]".encode()
        data = batch[0].data
        return bytes(data) if self._kind is PayloadKind.BYTES else data.encode()

    def _call(
        self,
        method: str,
        failure: str,
        clock: Clock,
        body: bytes = b"",
        stamp: dict[str, str] | None = None,
    ) -> int:
        """One request until it is answered, but not for ever; every one may be repeated."""
        headers = {"content-type": self._content_type, **(stamp or {})}
        problem, hint = "", "Run the same replay again: it goes on where it stopped."
        for attempt in range(_ATTEMPTS):
            if attempt:
                clock.sleep_s(min(5.0, 0.1 * 2**attempt))
            try:
                answer = self._client.request(method, self._url, content=body, headers=headers)
            except httpx.InvalidURL as error:
                raise InvalidRequest(f"--output {self._url} is not a URL: {error}") from error
            except httpx.TransportError as error:
                problem = repr(error)
            else:
                if answer.is_success:
                    return answer.status_code
                problem = f"{answer.status_code} {answer.text}"
                if answer.status_code < 500 and answer.status_code != 429:
                    hint = "The server refuses it: another target or other flags are wanted."
                    break
        raise StorageUnavailable(f"{self._url} {failure}: {problem}", hint=hint)


class RatePacer:
    """So many records a second, or the original pace times a factor, or as fast as it goes."""

    def __init__(self, clock: Clock, *, rate: float | None, pace: float | None) -> None:
        self._clock = clock
        self._rate = rate
        self._pace = pace
        self._begun_s: float | None = None
        self._first_s = 0.0
        self._count = 0

    def wait(self, rows: list[Row]) -> None:
        """Block until the batch may be sent."""
        now_s, moment_s = self._clock.monotonic_s(), rows[0].flushed_at.timestamp()
        if self._begun_s is None:
            self._begun_s, self._first_s = now_s, moment_s
        due_s = 0.0
        if self._rate is not None:
            due_s = self._count / self._rate
        elif self._pace is not None:
            due_s = (moment_s - self._first_s) / self._pace
        self._count += len(rows)
        if (rest_s := self._begun_s + due_s - now_s) > 0:
            self._clock.sleep_s(rest_s)
