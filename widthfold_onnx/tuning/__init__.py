"""Decide what every site of a model becomes, from measured or predicted times.

    decide     the form of every site, at a fixed factor or as a search chose
    search     what `--factor auto` does
    workload   layers cut out as models of their own
    measure    their times, here or on a cluster
    predict    their times without the device
    store      what was measured, kept in a file

It imports `rules`, `rewrite`, `runtime` and what they import; `planning` and the
commands import it.
"""
