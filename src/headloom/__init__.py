"""headloom: the attention weight matrix - train it, trace it, see it.

The face of the library:

    out = headloom.attention(q, k, v, is_causal=True)
    out, graph = headloom.attend(q, k, v, is_causal=True, keep=32)

    trace = headloom.trace(model, inputs, tokenizer=tokenizer, keep=32)
    trace.save("run.loom")

Its names stand in `__init__.pyi`, and each loads its module when it is first used: torch takes a
second, which `headloom --help` need not wait for, and in which the command line already answers
Ctrl-C.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
