"""What `headloom clusters` prints: a row for each layer, or the tokens of each cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headloom.cli.output import print_csv, print_json, say
from headloom.cli.tables import print_table
from headloom.formats.bounds import outward

if TYPE_CHECKING:
    from headloom.api.token_clusters import LayerClusters

__all__ = [
    "print_clusters",
    "print_layers",
    "say_of_fewer",
]

_HEADER = ("layer", "kind", "clusters", "cut", "cut_high", "least", "largest", "source")


def say_of_fewer(layers: Sequence[LayerClusters], asked: int | None) -> None:
    """Say it where there are fewer clusters than were asked for: not so many have attention."""
    numbers = [int(each.clusters.number[each.graph]) for each in layers]
    if asked is not None and numbers and min(numbers) < asked:
        few = f"{min(numbers)}" if min(numbers) == max(numbers) else f"{min(numbers)} or more"
        say(f"{few} clusters, not {asked}: there are no more positions that have attention.")


def print_layers(
    path: Path, layers: Sequence[LayerClusters], limit: int, as_csv: bool, as_json: bool
) -> None:
    """A row for each layer."""
    rows = [_row(each) for each in layers]
    if as_csv:
        print_csv(_HEADER, ([row[name] for name in _HEADER] for row in rows[:limit]))
        return
    names = _HEADER[2:]
    cells = [
        [each.label, *(_cell(name, row) for name in names)]
        for each, row in zip(layers, rows[:limit], strict=False)
    ]
    print_table(("layer", *names), cells, left=("layer", "source"))
    if len(rows) > limit:
        print(f"and {len(rows) - limit} more layers")
    print("--layer shows the tokens of each cluster, --count asks for so many.")
    if as_json:
        print_json({"trace": str(path), "layers": rows})


def print_clusters(
    path: Path, found: LayerClusters, limit: int, as_csv: bool, as_json: bool
) -> None:
    """The clusters of a layer or head: what stays in each, and its tokens."""
    from headloom.formats.tokens import shown, visible

    tokens = shown(found.layer.key_tokens)
    labels = found.clusters.labels[found.graph].tolist()
    if as_csv:
        print_csv(
            ("position", "token", "cluster"),
            ((place, tokens[place], label) for place, label in enumerate(labels[:limit])),
        )
        return
    heads = f"the mean of {found.layer.heads} heads" if found.head is None else f"head {found.head}"
    row = _row(found)
    cut = _between(row["cut"], row["cut_high"], ".4f")
    print(f"Layer {found.label}, {heads}: normalized cut {cut}", end="")
    # What the kept edges' eigenvalues say is said of these alone.
    print(
        f"; no division into as many has less than {outward(row['least'], '.4f')}."
        if row["least"]
        else "."
    )
    stays = _stays(found)
    for label in range(row["clusters"]):
        places = [place for place, own in enumerate(labels) if own == label]
        least, most = stays[label]
        share = _between(100 * least, 100 * most, ".1f")
        positions = f"{len(places)} position{'s' if len(places) != 1 else ''}"
        print(f"\nCluster {label}: {positions}; of what they give and receive {share}% stays there")
        for run in _runs(places[:limit]):
            where = f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}"
            print(f"  {where:>12}  {' '.join(visible(tokens[place]) for place in run)}")
        if len(places) > limit:
            print(f"  {'':>12}  and {len(places) - limit} more")
    if -1 in labels:
        print(f"\n{labels.count(-1)} left out, or without any attention.")
    if found.source == "kept":
        print("\nOf the kept edges; what these lack makes the intervals.")
    if as_json:
        print_json({"trace": str(path), **row, "head": found.head, "labels": labels,
                    "stays": stays})  # fmt: skip


def _row(found: LayerClusters) -> dict[str, Any]:
    own, graph = found.clusters, found.graph
    kept = found.source == "kept"
    return {
        "layer": found.number,
        "kind": found.layer.kind,
        "clusters": int(own.number[graph]),
        "cut": float(own.cut.lower[graph]),
        "cut_high": float(own.cut.upper[graph]),
        "least": None if kept else float(own.least[graph]),
        "largest": int(np.bincount(own.labels[graph] + 1)[1:].max(initial=0)),
        "source": found.source,
    }


def _cell(name: str, row: dict[str, Any]) -> str:
    value = row[name]
    if not isinstance(value, float):
        return "-" if value is None else str(value)
    known = name != "least" and row["cut"] == row["cut_high"]
    return f"{value:.4f}" if known else outward(value, ".4f", upper=name == "cut_high")


def _between(low: float, high: float, form: str) -> str:
    """A number that is known, or the bounds of it."""
    if format(low, form) == format(high, form):
        return format(low, form)
    return f"{outward(low, form)} to {outward(high, form, upper=True)}"


def _stays(found: LayerClusters) -> list[tuple[float, float]]:
    """Between which shares lies what stays in each cluster."""
    own = found.clusters.leaving
    count = int(found.clusters.number[found.graph])
    ends = zip(own.upper[found.graph].tolist(), own.lower[found.graph].tolist(), strict=True)
    return [(1 - most, 1 - least) for most, least in list(ends)[:count]]


def _runs(places: Sequence[int]) -> list[list[int]]:
    """Positions in runs without a gap.

    >>> _runs([0, 1, 2, 5, 7, 8])
    [[0, 1, 2], [5], [7, 8]]
    """
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][-1] + 1 == place:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs
