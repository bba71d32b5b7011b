"""The page of a node in a browser: who may see it, what it streams, its metrics and its health.

Entrance: `run_page.py`, which takes events; `page_server.py` serves it over HTTP.
"""
