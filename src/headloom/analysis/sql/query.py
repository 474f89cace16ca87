"""Questions to traces in SQL: to one, or to a folder of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headloom.analysis.sql.database import Answer, answered, connect
from headloom.analysis.sql.views import view_parts, views_in
from headloom.errors import optional_package
from headloom.formats.manifest import MANIFEST
from headloom.formats.trace import TraceData

if TYPE_CHECKING:
    import pandas

__all__ = ["QUESTIONS", "ask", "open_traces", "sql"]


def sql(trace: TraceData | Mapping[str, TraceData], query: str) -> pandas.DataFrame:
    """The answer to a query as a DataFrame.

    Takes what `ask` takes.

    Raises: InputError: the query is none, or asks for what there is not; pandas is missing.
    """
    with optional_package("sql"):
        import pandas  # noqa: F401
    frame: pandas.DataFrame = ask(trace, query).table().to_pandas()
    return frame


def ask(trace: TraceData | Mapping[str, TraceData], query: str) -> Answer:
    """Ask a trace a question in SQL.

    Args:
        trace: one; or several by name, and then every view has a column `trace`.
        query: one SELECT statement over the views of `headloom.analysis.sql.views`.

    Returns: the answer, which is computed while it is read.

    Raises: InputError: the query is no SELECT, or asks for what there is not; DuckDB is missing.
    """
    connection = connect()
    parts = view_parts(trace, views_in(connection, query))
    return answered(connection, query, parts, column=not isinstance(trace, TraceData))


def open_traces(path: Path | str) -> TraceData | dict[str, TraceData]:
    """A trace; or, of a folder that holds traces at any depth, all of them by their paths in it.

    Raises: DataError: there is none, or one is damaged.
    """
    folder = Path(path)
    if (folder / MANIFEST).exists() or not folder.is_dir():
        return TraceData.open(folder)
    folders = sorted(
        manifest.parent
        for manifest in folder.rglob(MANIFEST)
        # A trace that is being written has a hidden name.
        if not any(part.startswith(".") for part in manifest.relative_to(folder).parts)
    )
    if not folders:
        return TraceData.open(folder)
    return {str(trace.relative_to(folder)): TraceData.open(trace) for trace in folders}


#: Questions that fit every trace: what each asks, and its SQL. A sum over `edges` lacks what was
#: not kept; what share of its mass a head gives somewhere is asked of `heads`, where it is of all
#: weights, or `source` says that it is not.
QUESTIONS = (
    ("The strongest edges between different tokens",
     "select layer, head, query, query_text, key, key_text, weight\n"
     "from named where query <> key or kind = 'cross'\n"
     "order by weight desc, layer, head, query, key limit 20"),
    ("The keys that get most in the kept edges, over all heads",
     "select keys_from, key, key_text, sum(weight) as received\n"
     "from named join layers using (layer) group by all\n"
     "order by received desc, keys_from, key limit 20"),
    ("The sharpest heads: least entropy",
     "select layer, head, avg(entropy) as nats\n"
     "from rows group by all order by nats, layer, head limit 20"),
    ("The broadest heads: most entropy",
     "select layer, head, avg(entropy) as nats\n"
     "from rows group by all order by nats desc, layer, head limit 20"),
    ("How far each head looks, in tokens",
     "select layer, head, distance, source\n"
     "from heads where distance is not null order by distance desc, layer, head limit 20"),
    ("What the first key gets, by head",
     "select layer, head, first as share, source\n"
     "from heads where first is not null order by first desc, layer, head limit 20"),
    ("What the token before gets, by head",
     "select layer, head, previous as share, source\n"
     "from heads where previous is not null order by previous desc, layer, head limit 20"),
    ("Pairs of tokens that look at each other",
     "select a.layer, a.head, a.query as one, a.query_text as one_text,\n"
     "    a.key as other, a.key_text as other_text, a.weight as there, b.weight as back\n"
     "from named a join named b on a.layer = b.layer and a.head = b.head\n"
     "    and a.query = b.key and a.key = b.query and a.query < a.key\n"
     "where a.kind <> 'cross'\n"
     "order by least(there, back) desc, a.layer, a.head, one, other limit 20"),
    ("Roles: how many heads have each",
     "select role, count(*) as heads from heads group by role order by heads desc, role"),
    ("What the kept edges leave out, by layer",
     "select layer, avg(rest) as left_out from rows group by layer order by layer"),
)  # fmt: skip
