"""The survey of families: small random models of Transformers, and what weft catches of each."""
