"""`weft push`."""

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.options import AsJson, Repository, Snapshots, trace_or_run_is_there
from weft.cli.output import print_json, say, working

PLACE = ("See", 4)

Sent = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", callback=trace_or_run_is_there, help="A trace, a folder of traces, a run."
    ),
]
Private = Annotated[
    bool, typer.Option("--private", help="Only you see it, where the repository is new.")
]


def push(
    path: Sent, repository: Repository, private: Private = False, history: Snapshots = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Send traces or a run to the Hub of Hugging Face, as a data set or a model with its card."""
    from weft.jobs.hub import push as push_to_hub

    with working("sending"):
        sent = push_to_hub(path, repository, private=private, history=history)
    print(f"{sent.url}: {sent.files} files, {sent.bytes / 1e3:,.0f} kB")
    if not sent.card:
        say("Its README.md was there and stays as it is.")
    if sent.names:
        say(f"Its config.json names paths of this machine: {', '.join(sent.names)}")
    if as_json:
        print_json({"path": str(path), **vars(sent)})
