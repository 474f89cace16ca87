"""`weft train`."""

from pathlib import Path

from weft.cli.options import AsJson, Threads
from weft.cli.output import say
from weft.cli.train_options import BoardFolder, ConfigPath, Folder, Overrides, Processes
from weft.cli.training import launched, one_of_several, trained

PLACE = ("Make", 2)


def train(
    config: ConfigPath,
    run: Folder = None,
    overrides: Overrides = None,
    tensorboard: BoardFolder = None,
    processes: Processes = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Train a model, continue a run that was stopped, or extend one: raise training.max_steps."""
    folder = Path("runs") / config.stem if run is None else run
    with one_of_several() as speaks:
        from weft.training.config import defaults_of, load_config

        settings = load_config(config, overrides)
        notices = defaults_of(config, settings) if speaks else ()
        if processes == 1:
            trained(settings, folder, tensorboard, as_json=as_json, notices=notices)
            return
        for notice in notices:
            say(notice)
        command = ["train", str(config), "--run", str(folder)]
        command += [part for override in overrides or () for part in ("--set", override)]
        command += [] if tensorboard is None else ["--tensorboard", str(tensorboard)]
        command += [] if threads is None else ["--threads", str(threads)]
        launched(config, [*command, *(["--json"] if as_json else [])], processes)
