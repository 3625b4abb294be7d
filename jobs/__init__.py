"""Spark jobs: one verb per file, started with spark-submit. Spark is imported here only."""
