"""Readable output: tables, live views, summaries and charts."""
