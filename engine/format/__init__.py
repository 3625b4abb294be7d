"""Byte layouts: pure functions, no I/O. Documented in docs/format.md."""
