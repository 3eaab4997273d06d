"""Link the nodes of a model, read its constants, and replace nodes by others.

`document.Document` alone hands onnx_ir to the package; the other files are its parts. It imports
`model.proto` and `model.shapes`; `operators` and everything above import it.
"""
