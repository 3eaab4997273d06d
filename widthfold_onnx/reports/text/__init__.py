"""Render a report as text: for a terminal, a pipe, Markdown, and GitHub's log.

It imports `reports.wording` and `results`; `reports.formats` imports it.
"""
