"""The whole attention weight matrix as an exact operator that is never formed."""
