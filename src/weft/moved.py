"""The old names of modules that have moved. They work for one version, with a warning."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

__all__ = ["MOVED", "install"]

#: From the old name of a module to its new one.
MOVED = {
    "weft.analysis.ablation": "weft.experiments.ablation",
    "weft.analysis.averaged": "weft.analysis.graphs.head_average",
    "weft.analysis.circuits": "weft.analysis.matrices.circuits",
    "weft.analysis.components": "weft.analysis.graphs.components",
    "weft.analysis.flow": "weft.analysis.graphs.flow",
    "weft.analysis.formation": "weft.analysis.heads.formation",
    "weft.analysis.gradients": "weft.experiments.gradients",
    "weft.analysis.graph_measures": "weft.analysis.graphs.table",
    "weft.analysis.head_scores": "weft.analysis.heads.scores",
    "weft.analysis.layer_weights": "weft.analysis.heads.pattern_mass",
    "weft.analysis.measures": "weft.analysis.heads.measures",
    "weft.analysis.norms": "weft.analysis.graphs.norms",
    "weft.analysis.null": "weft.analysis.heads.chance",
    "weft.analysis.pagerank": "weft.analysis.graphs.pagerank",
    "weft.analysis.patterns": "weft.analysis.heads.patterns",
    "weft.analysis.prediction": "weft.experiments.prediction",
    "weft.analysis.query": "weft.analysis.sql.query",
    "weft.analysis.received": "weft.analysis.graphs.strength",
    "weft.analysis.reciprocity": "weft.analysis.graphs.reciprocity",
    "weft.analysis.relevance": "weft.experiments.relevance",
    "weft.analysis.retrieval": "weft.analysis.heads.retrieval",
    "weft.analysis.roles": "weft.analysis.heads.roles",
    "weft.analysis.rollout": "weft.analysis.graphs.rollout",
    "weft.analysis.similarity": "weft.analysis.heads.similarity",
    "weft.analysis.spectrum": "weft.analysis.graphs.spectrum",
    "weft.analysis.views": "weft.analysis.sql.views",
    "weft.analysis.weight_measures": "weft.analysis.matrices.table",
    "weft.analysis.weighted": "weft.experiments.gradient_weights",
    "weft.analysis.weights": "weft.analysis.matrices.projections",
    "weft.formats.trace_folder": "weft.formats.trace_writer",
    "weft.mechanism.matrix_blocks": "weft.mechanism.matrix.blocks",
    "weft.mechanism.matrix_call": "weft.mechanism.matrix.calls",
    "weft.mechanism.matrix_cells": "weft.mechanism.matrix.cells",
    "weft.mechanism.matrix_operator": "weft.mechanism.matrix.scipy_operator",
    "weft.mechanism.native": "weft.mechanism.backends.native",
    "weft.mechanism.native_call": "weft.mechanism.backends.native_request",
    "weft.mechanism.torch_ops": "weft.mechanism.backends.torch_ops",
    "weft.mechanism.transposed": "weft.mechanism.relative",
    "weft.tracing.at_rest": "weft.tracing.model_state",
    "weft.tracing.catcher": "weft.tracing.recording.recorder",
    "weft.tracing.caught": "weft.tracing.recording.layer_call",
    "weft.tracing.comparison": "weft.tracing.recording.comparison",
    "weft.tracing.dense": "weft.tracing.sources.dense_weights",
    "weft.tracing.exchange": "weft.formats.exchange",
    "weft.tracing.graphs": "weft.tracing.recording.cutting",
    "weft.tracing.growing": "weft.tracing.recording.passes",
    "weft.tracing.interface": "weft.tracing.sources.transformers",
    "weft.tracing.interventions": "weft.experiments.interventions",
    "weft.tracing.keeping": "weft.tracing.recording.layers",
    "weft.tracing.lazy_mask": "weft.tracing.sources.transformers_masks",
    "weft.tracing.own": "weft.tracing.sources.weft_models",
    "weft.tracing.own_verification": "weft.tracing.verification",
    "weft.tracing.parts": "weft.tracing.recording.cutting",
    "weft.tracing.prefix": "weft.tracing.inputs",
    "weft.tracing.reaching": "weft.experiments.head_outputs",
    "weft.tracing.reading": "weft.tracing.inputs",
    "weft.tracing.sequences": "weft.tracing.recording.sequences",
    "weft.tracing.terms": "weft.tracing.recording.score_terms",
    "weft.tracing.transformer_verification": "weft.tracing.verification",
    "weft.tracing.untouched": "weft.tracing.verification",
    "weft.tracing.wrapping": "weft.tracing.model_state",
}


class _OldNames(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module by its old name, and gives the one at its new place."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Only for the names in `MOVED`."""
        if fullname not in MOVED:
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """An empty module, filled by `exec_module`."""
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Put the module at the new place under the old name too."""
        old, new = module.__name__, MOVED[module.__name__]
        # 2: the import statement of the caller, beyond the frames of importlib.
        warnings.warn(f"{old} has moved to {new}.", DeprecationWarning, stacklevel=2)
        sys.modules[old] = importlib.import_module(new)


def install() -> None:
    """Let old names be imported. Once is enough; a second time changes nothing."""
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.append(_OldNames())
