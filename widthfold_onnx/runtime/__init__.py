"""Use ONNX Runtime: sessions, inputs, child processes, paired timing, the machine.

`session` and `inputs` run a model, in a `child` process or not. `contest` times two, by `clock`,
`settings` and `intervals`. `environment` and `kernels` tell of the machine. Nothing else of the
package imports onnxruntime.
"""
