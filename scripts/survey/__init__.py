"""Survey of families: small random models of Transformers, and headloom's record of each."""
