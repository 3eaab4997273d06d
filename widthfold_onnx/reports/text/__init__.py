"""Render a report as text: for a terminal, a pipe, Markdown, and GitHub's log.

It imports `reports.described`, `reports.words` and `results`; `reports.formats` imports it.
"""
