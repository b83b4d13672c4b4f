"""Stores of experiences beside the stream: a SQL database, JSON lines, or parquet; written, and read again."""
