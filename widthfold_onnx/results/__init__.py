"""Define the results of each command; the same structs are the JSON reports (`schemas/`).

A file holds one subject: layers, evidence, timing, tuning. It imports nothing of the package;
`runtime` and everything above import it.
"""

from widthfold_onnx.results.base import AssumedSizes, Gain, Result, SizeGain, SpeedVerdict, Verdict
from widthfold_onnx.results.evidence import (
    AxisPattern,
    Environment,
    FoldedNode,
    IntegerRun,
    OutputParity,
    Proof,
    VerifyReport,
    WorstElement,
)
from widthfold_onnx.results.sites import (
    MISFIT,
    CompanionReport,
    FormChoice,
    InspectReport,
    InspectSite,
    OptimizeReport,
    OptimizeSummary,
    PaddedChannels,
    PaddingReport,
    RegionReport,
    SiteReport,
    Stop,
)
from widthfold_onnx.results.timing import (
    Baseline,
    Gpu,
    GpuState,
    NodeTime,
    Side,
    Timing,
)
from widthfold_onnx.results.tuning import (
    Key,
    Measurement,
    SearchReport,
    TunedMachine,
    TunedModel,
    TuneReport,
)
