"""Estimates, buckets and backoff: how fast, how much, when again."""
