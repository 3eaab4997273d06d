"""Keep measurements: one SQLite file, keyed by everything that changes a time.

It imports `runtime` for what names a machine; the other folders of `plan` import it.
"""
