"""Decide the plan of a model from measured or predicted times.

    search     what `--factor auto` does
    workload   layers cut out as models of their own
    measure    their times, here or on a cluster
    predict    their times without the device
    store      what was measured, kept in a file

It imports `decide`, `runtime` and what they import; `pipeline`, `api` and the commands import it.
"""
