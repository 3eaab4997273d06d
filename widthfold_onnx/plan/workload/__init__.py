"""Cut layers out of a model as models of their own, to be measured in every form.

It imports `rules`, `rewrite`, `plan.decide`, `plan.predict` and `plan.store`; `plan.measure` and
`plan.search` import it.
"""
