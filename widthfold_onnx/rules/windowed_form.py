"""Define the folded Conv that replaces a node of the Conv family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from widthfold_onnx.fold.conv import ConvFold
from widthfold_onnx.fold.layout import Packing, Step
from widthfold_onnx.model.declared import Dims
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rules.base import Ends, LinearSite, Reformulation
from widthfold_onnx.rules.windowed import WindowedSite


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowedForm(Reformulation):
    """A folded Conv that replaces a node of the Conv family.

    Attributes:
        fold: the folded Conv.
        input: packing of its input, after extension to `in_shape`.
        output: packing of its output, before the cut to the site's own output.
        in_shape: input extents after zero-extension.
        out_shape: output extents before the cut.
    """

    fold: ConvFold
    input: Packing
    output: Packing
    in_shape: Dims
    out_shape: Dims

    def became(self, inputs: int, outputs: int) -> str:
        """Return the new channels for reports, with rank and groups if they changed."""
        text, regrouping = super().became(inputs, outputs), self.fold.regrouping
        changed = regrouping.before.group != regrouping.after.group
        return f"{text}, in groups: {self.fold.new_group}" if changed else text

    @property
    def form(self) -> str:
        """View or move, the kind of fold, and the layout if it is not NCHW, for reports."""
        return f"{super().form}{' in NHWC' if self.fold.digit_major else ''}"

    @property
    def folding(self) -> tuple[Step, ...]:
        """The Reshapes and Transposes of the data."""
        return self.input.steps(digit_major=self.fold.digit_major)

    @property
    def unfolding(self) -> tuple[Step, ...]:
        """The Reshapes and Transposes of the result."""
        return self.output.steps(digit_major=self.fold.digit_major, inverse=True)

    @property
    def rests(self) -> tuple[int, ...]:
        """Digits of every axis."""
        return self.fold.in_state.factors

    def exact(self, site: LinearSite) -> Mapping[int, int]:
        """Return the extents that the Reshapes state or the pads depend on."""
        assert isinstance(site, WindowedSite)
        stated = {i for i, extent in enumerate(self.input.shape) if extent is not None}
        return {i: site.planned[i] or 0 for i in stated | {i + 2 for i in site.sized_pads}}

    def ends(self, site: LinearSite) -> Ends:
        """Return the states at both ends.

        None if the tensor is extended or cut, a folded extent is open, or groups interleave.
        """
        fold = self.fold
        reads, returns = (
            state
            if shape == natural and state.fits(shape) and not (fold.digit_major and fold.group > 1)
            else None
            for state, shape, natural in (
                (fold.in_state, self.in_shape, site.planned),
                (fold.out_state, self.out_shape, site.output),
            )
        )
        why = None
        if self.out_shape != site.output:
            why = Refusal(Code.CUT, f"{list(self.out_shape)} is cut to {list(site.output)}")
        elif fold.digit_major and fold.group > 1:
            why = Refusal(Code.GROUPED_CHANNELS_LAST, "groups lie apart in the NHWC form")
        return Ends(site.data_index, reads, returns, self.input.shape, self.output.shape, why)
