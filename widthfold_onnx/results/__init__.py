"""Results of each verb. The same structs are the JSON reports; `schemas/` holds their schemas."""

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
    Choice,
    CompanionReport,
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
