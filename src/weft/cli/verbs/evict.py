"""`weft evict`."""

from weft.cli.eviction_options import Budgets, EachStep, Picture, Policies, PromptEnd, Rows
from weft.cli.eviction_report import print_eviction
from weft.cli.options import AsCsv, AsJson, OnlyLayer, TracePath
from weft.cli.output import progress_bar

PLACE = ("Read", 9)


def evict(
    path: TracePath, budget: Budgets = ["5%", "20%", "50%"],  # noqa: B006 - typer copies it
    policy: Policies = None, prompt_tokens: PromptEnd = None, each_step: EachStep = False,
    layer: OnlyLayer = None, by: Rows = "policy", picture: Picture = None,
    as_csv: AsCsv = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Print what a smaller cache of keys would have thrown away, and the attention lost by it."""
    from weft.analysis.heads.pattern_mass import in_half_precision
    from weft.formats.trace import TraceData
    from weft.jobs.eviction import EvictionRequest, run_evict

    request = EvictionRequest(budget, policy or (), prompt_tokens, each_step, layer, picture)
    with progress_bar("layers") as show:
        found = run_evict(path, request, show)
    note = in_half_precision(TraceData.open(path).layers)
    print_eviction(path, found, by, as_csv, as_json, note)
