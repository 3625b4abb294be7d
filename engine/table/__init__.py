"""The only package that touches Delta: schema, Parquet files, commits, checkpoints, what a log
says.
"""
