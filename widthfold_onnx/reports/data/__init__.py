"""Render a report for programs: JSON and JUnit XML.

It imports `reports.described`, `reports.words` and `results`; `reports.formats` imports it.
"""
