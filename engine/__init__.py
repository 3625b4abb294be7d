"""The log itself: streams that are Delta tables. Imports no web framework and no Spark."""
