"""`monitor`: what the heads of any model do while somebody's own program trains it.

At each measured step the model reads the probe (`headloom.analysis.monitor.probe`) in evaluation
mode, without gradients, as `headloom.trace` has it read; then its modules, its mode and the random
numbers are put back. The training's own passes are not touched: with the monitor and without, it
ends with the same bits.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from headloom.analysis.monitor.alarms import Alarms, in_words, warn
from headloom.analysis.monitor.measures import LayerSeen, layers_seen, values_of
from headloom.analysis.monitor.probe import (
    Given,
    Probe,
    check_whole,
    is_another_process,
    wait,
)
from headloom.analysis.monitor.record import LARGE, Record, bytes_of, opened
from headloom.errors import InputError
from headloom.formats.history import PROBE_EDGES, is_snapshot_step
from headloom.formats.trace import TraceData
from headloom.mechanism.graph import Top
from headloom.mechanism.shapes import whole_number
from headloom.tracing.arguments import Inputs
from headloom.tracing.capture import trace_with
from headloom.tracing.model_state import Hook, describe, random_state_restored, unchanged, unwrapped
from headloom.tracing.options import TraceOptions, checked_layers

#: Steps between two reports of the loss; snapshots are kept at steps 0, 1, GROWTH, GROWTH^2, ...
REPORT_EVERY, GROWTH = 20, 2.0


class Sink(Protocol):
    """Who is told numbers of a training; one with ``close()`` is closed at the end."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a step: `headloom.analysis.monitor.measures.values_of`."""


class Monitor:
    """Watch the attention of a model while your own program trains it.

        with headloom.monitor(model, "runs/mine") as monitor:
            for batch in batches:
                loss = model(**batch).loss
                loss.backward()
                optimiser.step()
                optimiser.zero_grad()
                monitor.step(loss)

    and then ``headloom view runs/mine``, also while it trains. What is measured:
    `headloom.analysis.monitor.measures`; what is warned of: `headloom.analysis.monitor.alarms`.
    With Transformers' `Trainer` take `headloom.MonitorCallback`.

    Args:
        model: any that `headloom.trace` takes; in DDP or DataParallel, or compiled, too. Of several
            processes the first writes.
        folder: of the run; made if it is not there.
        every: steps from one measure to the next.
        probe: the fixed input that is measured: a tensor, the first arguments in a tuple, or a
            tensor for each argument of the model; None: the first sequence of the first batch that
            the model is given, or all of a graph; a training that is taken up again keeps its own.
            The history keeps the graph of the first sequence.
        tokenizer: who names the tokens of the probe; see `headloom.trace`.
        layers: which layers, as for `headloom.trace`; None: all.
        sinks: where numbers go besides: objects with ``log(step, values)``.
        step: steps that are done, where a training is taken up again in its folder: what was
            written after it is forgotten. None: the training begins.
        overwrite: remove a watched training that is in the folder, and nothing else. With `step`
            it is gone on with, and nothing is removed.

    warnings: what was warned of, in order: "step 1,200: ...". Nothing happens before it is entered.

    Raises: InputError: an argument that cannot be used, a model whose parameters are spread over
    processes (FSDP), or, when it is first called, one that cannot be traced; DataError: the folder
    cannot be made or is damaged. Once it measures, what fails is warned of and the training goes
    on.
    """

    def __init__(
        self,
        model: nn.Module,
        folder: Path | str,
        *,
        every: int = 100,
        probe: Given | None = None,
        tokenizer: object = None,
        layers: Sequence[int | str] | None = None,
        sinks: Sequence[Sink] = (),
        step: int | None = None,
        overwrite: bool = False,
    ) -> None:
        self._called_model, self._model = model, unwrapped(model, "monitor")
        check_whole(model)
        self._every = whole_number("monitor", "every", every, 1)
        self._resumes = None if step is None else whole_number("monitor", "step", step, 0)
        self._folder, self._overwrite = Path(folder), overwrite
        self._steps = self._resumes or 0
        self._options = TraceOptions(
            tokenizer=tokenizer, keep=Top(PROBE_EDGES), layers=checked_layers(layers, "monitor"),
            verify=False,
        )  # fmt: skip
        self._asked = None if probe is None else Probe.checked(self._model, probe)
        self._sinks = list(sinks)
        self._stack: ExitStack | None = None
        #: The hook that waits for the first batch.
        self._first_call: RemovableHandle | None = None
        self._record: Record | None = None
        self._probe: Probe | None = None
        self._alarms = Alarms()
        self._losses: list[Tensor | float] = []
        self._loss: float | None = None
        self._measured: int | None = None
        self._busy = self._ended = False
        self._warned: set[str] = set()
        self._spent = self._elapsed = 0.0
        self._clock: float | None = None
        self.warnings: list[str] = []

    # In and out

    def __enter__(self) -> Self:
        if self._stack is not None or self._ended:
            raise InputError("monitor: it is entered already, or has ended. Make another one.")
        if is_another_process():
            self._ended = True
            return self
        with ExitStack() as stack:
            record = stack.enter_context(opened(self._folder, self._resumes, self._overwrite))
            self._record, self._clock = record, time.perf_counter()
            if record.goes_on and record.folder.probe.exists():
                device = next((p.device for p in self._model.parameters()), torch.device("cpu"))
                self._asked = Probe.open(record.folder.probe, device)
            if self._asked is not None:
                self._begin(record, self._asked)
            else:
                self._first_call = self._called_model.register_forward_pre_hook(
                    Hook(self._called), with_kwargs=True
                )
                stack.callback(self._first_call.remove)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stack is None:
            return
        stack, self._stack = self._stack, None
        with stack:
            record = self._record
            if kind is None and self._probe is not None and record is not None:
                with self._going_on("the end"):
                    self._report()
                    last = record.last_snapshot != self._steps
                    if last or self._measured != self._steps:
                        self._measure(snapshot=last)
                    record.folder.set_state("finished")
            self._ended, self._elapsed, self._clock = True, self._time(), None
            for sink in self._sinks:
                with self._going_on("the end"):
                    getattr(sink, "close", lambda: None)()

    def _called(self, module: nn.Module, args: tuple[object, ...], keywords: Inputs) -> None:
        """The model is called: the first sequence of its first batch is the probe."""
        # Compiled code calls no hook that comes and goes.
        compiled = torch.compiler.is_compiling()
        if compiled or self._busy or self._probe is not None or not torch.is_grad_enabled():
            return
        if self._record is not None and self._first_call is not None:
            self._begin(self._record, Probe.taken(self._model, args, keywords))
            self._first_call.remove()

    def _begin(self, record: Record, probe: Probe) -> None:
        """Measure for the first time; what is wrong with the model or the probe is an error."""
        with self._measuring():
            seen = self._seen(probe, first=True)
            self._probe, self._keeps = probe, bytes_of(seen) <= LARGE
            about = {
                "every": self._every,
                "model": describe(self._model),
                "matrices": self._keeps,
                "not_traced": self._not_traced,
            }
            known = record.begin(about, seen)
            probe.save(record.folder.probe)
            if known:
                self._alarms = Alarms(known[0]["layers"])
                self._measured = known[-1]["step"]
            if self._measured != self._steps:
                self._take(record, seen, snapshot=record.last_snapshot != self._steps)

    # Steps

    def step(self, loss: Tensor | float | None = None, **values: float) -> None:
        """A step was done: call it after the optimiser's.

        Args: loss: of the step. values: what else is to be shown, as validation_loss=1.2 or
        learning_rate=1e-4.
        """
        if self._stack is None and not self._ended:
            raise InputError("monitor: enter it first: with headloom.monitor(...) as monitor: ...")
        self.reach(self._steps + 1, loss, **values)

    def reach(self, step: int, loss: Tensor | float | None = None, **values: float) -> None:
        """As `step`, for who counts the steps, not each of which need be told."""
        if self._ended:
            return
        before, self._steps = min(self._steps, step - 1), step
        if self._probe is None:
            self._say_once(
                "no probe",
                f"the {type(self._model).__name__} was not called, or is compiled, so that its "
                "inputs are not seen and nothing is measured. Give probe=: a tensor for each "
                "argument of the model.",
            )
            return
        if loss is not None:
            # Not as a number: a device need not be waited for.
            self._losses.append(loss.detach() if isinstance(loss, Tensor) else float(loss))
        with self._going_on(f"step {step:,}"):
            if values:
                self.report(**values)
            if step // REPORT_EVERY > before // REPORT_EVERY:
                self._report()
            snapshot = is_snapshot_step(step, GROWTH, before)
            if snapshot or step // self._every > before // self._every:
                self._measure(snapshot=snapshot)

    def report(self, **values: float) -> None:
        """Add numbers of the step to the metrics: loss=, validation_loss=, learning_rate=."""
        if self._ended or self._probe is None or self._record is None:
            return
        with self._going_on("a report"):
            numbers = {name: float(value) for name, value in values.items()}
            finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
            for name in numbers.keys() - finite.keys():
                self._say_once(name, f"step {self._steps:,}: {name} is {numbers[name]}")
            self._loss = finite.get("loss", self._loss)
            if finite:
                self._record.folder.reports.append({"step": self._steps, **finite})

    def _report(self) -> None:
        """The mean loss of the steps since the last report."""
        losses, self._losses = self._losses, []
        if losses:
            self.report(loss=sum(float(loss) for loss in losses) / len(losses))

    # Measuring

    def _measure(self, *, snapshot: bool) -> None:
        if self._probe is not None and self._record is not None:
            with self._measuring():
                self._take(self._record, self._seen(self._probe), snapshot=snapshot)

    def _take(self, record: Record, seen: Sequence[LayerSeen], *, snapshot: bool) -> None:
        """Write what was seen, tell the sinks, and warn."""
        step = self._steps
        if snapshot:
            loss = self._losses[-1] if self._losses else self._loss
            record.add_snapshot(step, None if loss is None else float(loss), seen, self._keeps)
        if self._measured == step:
            return
        alarms = self._alarms.check(step, seen)
        record.add(step, seen, alarms, self._time())
        self._measured = step
        for sink in self._sinks:
            try:
                sink.log(step, values_of(seen))
            except Exception as error:
                # A board that cannot be reached is no reason to lose a training.
                name = type(sink).__name__
                self._say_once(name, f"{name}: {in_words(error)}")
        for alarm in alarms:
            self.warnings.append(alarm["text"])
            warn(alarm["text"])

    def _seen(self, probe: Probe, first: bool = False) -> list[LayerSeen]:
        """Let the model read the probe."""
        options = replace(self._options, sampled=first)
        with (
            unchanged(self._model), random_state_restored(), probe.computing(),
            warnings.catch_warnings(),
        ):  # fmt: skip
            if not first:
                # What is not traced was said when the watch began.
                warnings.simplefilter("ignore")
            found = trace_with(self._model, dict(probe.inputs), options)
            traces: Sequence[TraceData] = found if isinstance(found, list) else [found]
            self._not_traced = [dict(entry) for entry in traces[0].not_traced]
            return layers_seen(self._model, traces)

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        """Count the time of a block; the model's calls in it are the monitor's own."""
        self._busy = True
        wait(self._model)
        start = time.perf_counter()
        try:
            yield
        finally:
            wait(self._model)
            self._spent += time.perf_counter() - start
            self._busy = False

    @contextmanager
    def _going_on(self, when: str) -> Iterator[None]:
        """Warn of what fails: the training is worth more than what is known of it."""
        try:
            yield
        except Exception as error:
            text = f"{when}: {in_words(error)}. The training goes on."
            self._say_once(type(error).__name__, text)

    def _say_once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warn(text)

    def _time(self) -> float:
        """Seconds since it was entered."""
        return self._elapsed if self._clock is None else time.perf_counter() - self._clock

    @property
    def overhead(self) -> float:
        """The time that the monitor took, as a share of the rest: 0.01 is 1 percent."""
        rest = self._time() - self._spent
        return self._spent / rest if rest > 0 else 0.0


#: The same, by the name of what it does.
monitor = Monitor
