"""Use ONNX Runtime: sessions, inputs, child processes, paired timing, measurements, the machine.

`session` and `inputs` run a model, in a `child` process or not. `paired_benchmark` times two, by
`clock`, `settings` and `intervals`; `measurement` is the result. `environment` and `kernels` tell
of the machine. Nothing else of the package imports onnxruntime. `rewrite` and everything above
import it.
"""
