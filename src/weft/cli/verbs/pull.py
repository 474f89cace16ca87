"""`weft pull`."""

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.options import AsJson, Repository
from weft.cli.output import print_json, working

PLACE = ("See", 5)

Output = Annotated[
    Path, typer.Option("-o", "--output", help="The folder to make: a trace, traces or a run.")
]


def pull(repository: Repository, output: Output, as_json: AsJson = False) -> None:
    """Fetch traces or a run that `weft push` has sent to the Hub of Hugging Face."""
    from weft.jobs.hub import pull as pull_from_hub

    with working("fetching"):
        found = pull_from_hub(repository, output)
    print(f"{found.folder}: {found.what}")
    if as_json:
        print_json({"repository": repository, **vars(found)})
