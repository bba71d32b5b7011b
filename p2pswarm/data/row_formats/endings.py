"""What the endings of names of files say: which files have rows, and which are compressed."""

from p2pswarm.data.row_formats.tables import TABLES

JSON = ".json"
JSON_LINES = frozenset({".jsonl", ".ndjson", ".jsonlines"})
PARQUET = frozenset({".parquet"})
ARROW = frozenset({".arrow"})
ROWS = JSON_LINES | PARQUET | ARROW | TABLES
COMPRESSED = frozenset({".gz", ".zst", ".bz2", ".xz", ".zip", ".lz4"})
