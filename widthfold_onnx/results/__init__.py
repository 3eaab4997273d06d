"""Results of each verb. The same structs are the JSON reports; `schemas/` holds their schemas."""

from widthfold_onnx.results.base import Result, Verdict
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
from widthfold_onnx.results.search import AssumedSizes, Gain, SearchReport, SizeGain, SpeedVerdict
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
from widthfold_onnx.results.store import Key, Measurement
from widthfold_onnx.results.timing import (
    Baseline,
    Gpu,
    GpuState,
    NodeTime,
    Side,
    Timing,
)
from widthfold_onnx.results.tune import TunedMachine, TunedModel, TuneReport
