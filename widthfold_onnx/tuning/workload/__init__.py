"""Cut layers out of a model as models of their own, to be measured in every form.

It imports `rules`, `rewrite`, `decide`, `tuning.predict` and `tuning.store`; `tuning.measure` and
`tuning.search` import it.
"""
