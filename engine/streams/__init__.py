"""Stream metadata and life cycle: what a stream is, who produces into it, who forked from it."""
