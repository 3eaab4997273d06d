"""List the changes that a search makes to a model, and build the model that has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx

from widthfold_onnx.model.graph.document import Document
from widthfold_onnx.model.proto.frozen import frozen
from widthfold_onnx.model.read.loader import LoadedModel
from widthfold_onnx.operators import OPERATORS
from widthfold_onnx.options import Companion, FoldOptions
from widthfold_onnx.plan.decide.decisions import plan, rewriting
from widthfold_onnx.plan.workload.candidates import form_of, lift_of
from widthfold_onnx.plan.workload.layers import Layers
from widthfold_onnx.refusal import Code, Refusal
from widthfold_onnx.rewrite.exchange import Match, exchanged
from widthfold_onnx.rules.forms.form import Reformulation
from widthfold_onnx.rules.match.site import LinearSite

AS_IT_IS = Refusal(Code.NO_GAIN, "the choice leaves it as it is")


@dataclass(frozen=True)
class Choice:
    """List the changes that a search makes to a model.

    Attributes:
        frozen: whether weights that are also graph inputs are taken out of these.
        companions: those that are exchanged.
        forms: subject of a layer -> its form; a layer that is not named stays as it is.
        lifted: whether those of one axis are lifted instead: for trials before layers are known.
    """

    frozen: bool = False
    companions: tuple[Companion, ...] = ()
    forms: Mapping[str, str] = field(default_factory=dict)
    lifted: bool = False


ORIGINAL = Choice()


def prepared_by(choice: Choice, loaded: LoadedModel) -> tuple[onnx.ModelProto, list[Match]]:
    """Return the model with what a choice changes beside the layers, and what companions match.

    It is the loaded one if nothing changes.
    """
    proto = frozen(loaded.proto) if choice.frozen else loaded.proto
    return exchanged(proto, loaded.folder, choice.companions)


def document_of(choice: Choice, loaded: LoadedModel) -> Document:
    """Return a copy of the model with what a choice changes beside the layers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(prepared_by(choice, loaded)[0])
    return Document(copy, loaded.folder, OPERATORS)


def built(
    choice: Choice, loaded: LoadedModel, layers: Layers, fold: FoldOptions
) -> tuple[onnx.ModelProto, set[str]]:
    """Return the model of a choice, and the names of its tensors that go into external files.

    Args:
        choice: the changes.
        loaded: the original model.
        layers: the layers of the model with what the choice changes beside them.
        fold: which sites may be folded, and limits of forms.
    """

    def choose(site: LinearSite) -> Reformulation | Refusal:
        subject = layers.subject(site)
        if isinstance(subject, Refusal) or subject not in choice.forms:
            return lift_of(site, fold) if choice.lifted else AS_IT_IS
        return form_of(site, choice.forms[subject], fold)

    document = document_of(choice, loaded)
    changes = choice.forms or choice.lifted
    decisions = plan(document, fold, choose) if changes else []
    return rewriting(document, decisions, fold).carry_out(), document.external_names
