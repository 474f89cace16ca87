"""headloom: the attention weight matrix - train it, trace it, see it.

The public interface:

    out = headloom.attention(q, k, v, is_causal=True)
    out, graph = headloom.attend(q, k, v, is_causal=True, keep=32)

    trace = headloom.trace(model, inputs, tokenizer=tokenizer, keep=32)
    trace.save("run.loom")

Its names are in `__init__.pyi`; each loads its module on first use, so that `headloom --help` does
not wait a second for torch, and Ctrl-C works while torch loads.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
