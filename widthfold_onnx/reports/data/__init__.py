"""Render a report for programs: JSON and JUnit XML.

It imports `reports.wording` and `results`; `reports.formats` imports it.
"""
