"""Two Convs, and options that fold both."""

from widthfold_onnx.options import AxisName, FoldOptions

NET = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 3, 4, 24] x) => (float[1, 2, 4, 24] y) <float[5, 3, 1, 1] v, float[2, 5, 1, 1] w>
{ [b] a = Conv (x, v)  [relu] r = Relu (a)  [a] y = Conv (r, w) }"""
OPTIONS = FoldOptions(factor=4, axis=AxisName.WIDTH)
