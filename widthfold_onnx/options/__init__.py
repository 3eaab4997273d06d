"""Define the options of the caller: frozen dataclasses and enums that check themselves.

`folding` says what to fold, `running` where it runs, `keywords` mirrors both for Python calls, and
`progress` defines what a caller hears of the work.
It imports `errors`; `model` and everything above import it.
"""

from widthfold_onnx.options.folding import (
    ANY_SIZE,
    FACTORS,
    SMALLEST_FACTOR,
    STRIDES_ALONE,
    AxisName,
    Companion,
    FoldOptions,
    Form,
    Layout,
    NonFinite,
    Shapes,
    Sizes,
    Values,
    sizes_of,
)
from widthfold_onnx.options.running import (
    Effort,
    Provider,
    RuntimeOptions,
    SearchOptions,
    Tolerance,
    VerifyOptions,
)
