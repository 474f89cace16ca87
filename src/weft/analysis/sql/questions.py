"""Questions in SQL that fit every trace.

A sum over `edges` lacks what was not kept, and a mean over them is a mean over the strong ones.
What share of its mass a head gives somewhere is asked of `heads`: there it is of all weights, or
`source` says that it is a lower bound.
"""

__all__ = ["QUESTIONS"]

#: What each asks, and its SQL.
QUESTIONS = (
    ("The strongest edges between different tokens",
     "select layer, head, query_token, key_token, round(weight, 3) as weight\n"
     "from named where query <> key order by weight desc limit 20"),
    ("The keys that get most in the kept edges, over all heads",
     "select key_token, key, round(sum(weight), 2) as received\n"
     "from named group by all order by received desc limit 20"),
    ("The sharpest heads: least entropy",
     "select layer, head, round(avg(entropy), 3) as nats\n"
     "from rows group by all order by nats limit 20"),
    ("The broadest heads: most entropy",
     "select layer, head, round(avg(entropy), 3) as nats\n"
     "from rows group by all order by nats desc limit 20"),
    ("How far each head looks, in tokens",
     "select layer, head, round(distance, 2) as at_least, round(distance_upper, 2) as at_most\n"
     "from heads where distance is not null order by distance desc limit 20"),
    ("What the first key gets, by head",
     "select layer, head, round(first, 3) as share, source\n"
     "from heads where first is not null order by first desc limit 20"),
    ("What the token before gets, by head",
     "select layer, head, round(previous, 3) as share, source\n"
     "from heads where previous is not null order by previous desc limit 20"),
    ("Pairs of tokens that look at each other",
     "select a.layer, a.head, a.query, a.key, round(a.weight, 3) as there,\n"
     "    round(b.weight, 3) as back\n"
     "from edges a join edges b on a.layer = b.layer and a.head = b.head\n"
     "    and a.query = b.key and a.key = b.query and a.query < a.key\n"
     "order by least(a.weight, b.weight) desc limit 20"),
    ("Roles: how many heads have each",
     "select role, count(*) as heads from heads group by role order by heads desc"),
    ("What the kept edges leave out, by layer",
     "select layer, round(avg(rest), 4) as left_out from rows group by layer order by layer"),
)  # fmt: skip
