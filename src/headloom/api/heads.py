"""`headloom.heads`: roles and measures of heads, filtered and sorted; or of heads in training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headloom.analysis.heads import roles
from headloom.analysis.heads.formation import formation
from headloom.analysis.heads.retrieval import find_needle, retrieval
from headloom.api.reading import Traces, history_of, labels, traces_of
from headloom.errors import InputError
from headloom.formats.trace import layer_number

if TYPE_CHECKING:
    import pandas


def heads(
    traces: Traces,
    *,
    role: str | None = None,
    layer: str | int | None = None,
    sort: str | None = None,
    limit: int | None = None,
    exact: bool | None = None,
    needle: str | None = None,
    measure: str | None = None,
) -> pandas.DataFrame:
    """Return the role of each head, with its measures and their values by chance.

    Args:
        traces: of one model, as objects or paths, or a folder of them; or a run: its probe.
        role: only heads of this role.
        layer: only heads of this layer.
        sort: column to sort by, ties of retrieval by the mass on the needle; None: by layer and
            head, or with a needle by retrieval.
        limit: maximum of heads.
        exact: True: from all weights; False: from the kept edges; None: exactly where it is cheap.
        needle: a text that occurs twice, whose retrieval is measured: four more columns.
        measure: for a run: this measure of every head instead, a row for each snapshot.

    Returns: a DataFrame, a row a head, with the columns of `headloom heads --csv`; with `measure`
    columns step, loss, and layer.head. ``attrs``: heads (total), roles (heads of each), texts,
    tokens, and layers (their names).

    Raises: InputError: no such role, column or layer; DataError: no trace.

    >>> import headloom, torch
    >>> weights = torch.tensor([[[1.0, 0, 0], [1, 0, 0], [0, 1, 0]]])
    >>> headloom.heads(headloom.from_weights(weights, mask=headloom.causal()))["previous"].item()
    1.0
    """
    if measure is not None:
        return _in_training(traces, measure)
    known = (*roles.ROLES, "broad", "mixed", roles.NO_NUMBER)
    if role is not None and role not in known:
        raise InputError(f"role {role}: no such role; there are {', '.join(known)}.")
    several = traces_of("heads", traces)
    table = roles.heads(several, exact=exact)
    about = {
        "heads": len(table), "texts": len(several), "layers": labels(several[0]),
        "tokens": sum(len(next(iter(trace.sequences.values()))) for trace in several),
    }  # fmt: skip
    if needle is not None:
        if len(several) > 1:
            raise InputError("needle works on one text. Give one trace.")
        copied = retrieval(several[0], find_needle(several[0].tokens, needle))
        table = table.merge(type(table)(copied), how="left", on=["layer", "head"])
        sort = sort or "retrieval"
    if sort is not None and sort not in table.columns:
        raise InputError(f"sort {sort}: no such column; there are {', '.join(table.columns)}.")
    if layer is not None:
        table = table[table["layer"] == layer_number(several[0], layer)]
    about["roles"] = {str(name): int(n) for name, n in table["role"].value_counts().items()}
    if role is not None:
        table = table[table["role"] == role]
    if sort is not None:
        # Many heads have no retrieval: sort these by their mass on the needle.
        columns = ["retrieval", "needle"] if sort == "retrieval" else [sort]
        rising = sort in ("layer", "head", "role")
        table = table.sort_values(columns, ascending=rising, kind="stable")
    table = table if limit is None else table.head(limit)
    table.attrs.update(about)
    return table


def _in_training(run: Traces, measure: str) -> pandas.DataFrame:
    """Return a measure of every head of a run, snapshot by snapshot."""
    import pandas

    only = run[0] if isinstance(run, list | tuple) and len(run) == 1 else run
    path = getattr(only, "path", only)
    if not isinstance(path, str | Path):
        raise InputError("measure works on one run. Give one path.")
    return pandas.DataFrame(
        {"step": moment.step, "loss": moment.loss}
        | {f"{layer}.{head}": score for (layer, head), score in moment.scores.items()}
        for moment in formation(history_of(Path(path)), measure)
    )
