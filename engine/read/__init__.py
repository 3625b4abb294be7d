"""One record's way out: lineage, reader, cache; live waits for the tail."""
