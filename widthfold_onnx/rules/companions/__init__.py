"""Find ops around low-channel layers that an equal op computes faster: companions of the fold.

Each rule is one file, which states its match and why the exchange is exact. `table` lists the
rules; there are five at most, since this is no general optimizer. `rewrite.exchange` carries them
out. No proof reads them: `evidence.proof` defines the ops on both sides.
"""
