"""The models that experiments run on: those of the tracing tests, and the real encoder."""

from tests.analysis.conftest import minilm, minilm_folder
from tests.tracing.conftest import family, family_named

__all__ = ["family", "family_named", "minilm", "minilm_folder"]
