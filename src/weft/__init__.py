"""weft: the attention weight matrix - train it, trace it, see it.

The face of the library:

    out = weft.attention(q, k, v, mask=weft.causal())
    out, graph = weft.attend(q, k, v, mask=weft.causal(), keep=weft.Top(32))

    trace = weft.trace(model, inputs, tokenizer=tokenizer, keep=weft.Top(32))
    trace.save("run.weft")

Its names stand in `__init__.pyi`, and each loads its module when it is first used: torch takes a
second, which `weft --help` need not wait for, and in which the command line already answers Ctrl-C.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
