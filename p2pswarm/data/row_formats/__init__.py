"""Formats of files with rows: how they are compressed, tables, and paths to a row's field."""
