"""Renders a report as one HTML page with its pictures.

It imports `results`, `reports.described` and `reports.words`; `reports.formats` imports it.
"""
