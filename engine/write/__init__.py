"""One record's way in: ingest, group, wal, buffer, committer, trim; recovery at start."""
