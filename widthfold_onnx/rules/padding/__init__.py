"""Find chains of tensors whose channels can be padded with zeros, so that kernels fill vectors.

`operators` has the rule of each operator, `chains` finds the tensors that are padded together,
`channels` defines channels, padded tensors and rules. `rewrite.padding` carries the
padding out.
"""
