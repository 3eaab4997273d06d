"""Find chains of tensors whose channels can be padded with zeros, so that kernels fill vectors.

A padded layout (`algebra.padded_layout`) is no bijection: padding holds a number that no data
changes, and the weight behind it is zero there. `table` lists what each operator does to it,
`chains` finds the tensors that are padded together. `rewrite.padding` carries it out.
"""
