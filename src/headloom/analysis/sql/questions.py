"""Questions in SQL that fit every trace.

A sum over `edges` lacks what was not kept, and a mean over them is a mean over the strong ones.
What share of its mass a head gives somewhere is asked of `heads`: there it is of all weights, or
`source` says that it is a lower bound.
"""

__all__ = ["QUESTIONS"]

#: What each asks, and its SQL.
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
     "select layer, head, distance as at_least, distance_upper as at_most\n"
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
