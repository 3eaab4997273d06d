"""Show results: one module for each format; `formats` chooses and writes, `console` prints.

`described` turns a result into the tables and lines that every format shows.
"""
