"""Use ONNX Runtime: sessions, inputs, child processes, paired timing, the machine.

`session` and `inputs` run a model, in this process or in a `child`. `contest` times two models,
with `clock`, `settings` and `intervals`. `environment` and `kernels` describe the machine.
`library` imports onnxruntime; beside it only `model.runtime_operators` does, which lists operators.
"""
