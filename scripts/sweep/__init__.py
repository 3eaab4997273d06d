"""Parts of `proof_sweep.py`: models of one node, changes of them, and the judgement of a pair."""
