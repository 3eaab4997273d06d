"""Render a report as one HTML page with its pictures.

It imports `reports.wording` and `results`; `reports.formats` imports it.
"""
