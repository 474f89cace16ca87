"""From the attention calls of a model that runs to the layers of a trace, verified."""
