"""Sources of attention calls: where the calls of a model's layers are taken."""
