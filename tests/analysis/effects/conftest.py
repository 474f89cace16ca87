"""The models that experiments run on: those of the tracing tests."""

from tests.tracing.conftest import family, family_named

__all__ = ["family", "family_named"]
