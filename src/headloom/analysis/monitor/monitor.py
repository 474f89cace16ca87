"""`monitor`: measure the attention heads of any model while your own program trains it.

At each measured step the model reads the probe (`headloom.analysis.monitor.probe`) in evaluation
mode, without gradients, as in `headloom.trace`; then its modules, its mode and the random states
are restored. The training itself is not changed: it ends with the same bits with and without the
monitor.
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
from headloom.analysis.monitor.measures import MeasuredLayer, measured_layers, values_of
from headloom.analysis.monitor.probe import Given, Probe, check_whole, is_another_process, wait
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

#: Steps between two reports of the loss; snapshots are at steps 0, 1, GROWTH, GROWTH^2, ...
REPORT_EVERY, GROWTH = 20, 2.0


class Sink(Protocol):
    """Protocol of a logger of a training's numbers; ``close()``, if any, is called at the end."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a step: `headloom.analysis.monitor.measures.values_of`."""


class Monitor:
    """Monitor of a model's attention while your own program trains it.

        with headloom.monitor(model, "runs/mine") as monitor:
            for batch in batches:
                loss = model(**batch).loss
                loss.backward()
                optimiser.step()
                optimiser.zero_grad()
                monitor.step(loss)

    and then ``headloom view runs/mine``, also while it trains. Measures:
    `headloom.analysis.monitor.measures`; warnings: `headloom.analysis.monitor.alarms`. With the
    `Trainer` of Transformers, use `headloom.MonitorCallback`.

    Args:
        model: any model for `headloom.trace`; also in DDP or DataParallel, or compiled. Of several
            processes the first writes.
        folder: of the run; created if missing.
        every: steps between two measures.
        probe: the fixed input: a tensor, the first arguments in a tuple, or a tensor for each
            argument of the model; None: the first sequence of the first batch, or a whole graph; a
            resumed training keeps its own. The history keeps the graph of the first sequence.
        tokenizer: turns ids of the probe into names; see `headloom.trace`.
        layers: as for `headloom.trace`; None: all.
        sinks: other loggers of the numbers: objects with ``log(step, values)``.
        step: number of steps done, to resume a training in its folder; later records are deleted.
            None: the training begins.
        overwrite: whether to replace a monitored training in the folder; other folders are never
            replaced. Ignored with `step`.

    warnings: all warnings, in order: "step 1,200: ...". Nothing happens before `with` enters it.

    Raises: InputError: an argument that cannot be used, a model whose parameters are spread over
    processes (FSDP), or, at its first call, one that cannot be traced; DataError: the folder cannot
    be created or is damaged. Later failures are warnings, and the training goes on.
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
        self._given_probe = None if probe is None else Probe.checked(self._model, probe)
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
                self._given_probe = Probe.open(record.folder.probe, device)
            if self._given_probe is not None:
                self._begin(record, self._given_probe)
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
                with self._errors_as_warnings("the end"):
                    self._report()
                    last = record.last_snapshot != self._steps
                    if last or self._measured != self._steps:
                        self._measure(snapshot=last)
                    record.folder.set_state("finished")
            self._ended, self._elapsed, self._clock = True, self._time(), None
            for sink in self._sinks:
                with self._errors_as_warnings("the end"):
                    getattr(sink, "close", lambda: None)()

    def _called(self, module: nn.Module, args: tuple[object, ...], keywords: Inputs) -> None:
        """Take the probe from the model's first batch."""
        # Compiled code does not call hooks that are added and removed.
        compiled = torch.compiler.is_compiling()
        if compiled or self._busy or self._probe is not None or not torch.is_grad_enabled():
            return
        if self._record is not None and self._first_call is not None:
            self._begin(self._record, Probe.taken(self._model, args, keywords))
            self._first_call.remove()

    def _begin(self, record: Record, probe: Probe) -> None:
        """Measure for the first time; problems with the model or the probe are errors."""
        with self._measuring():
            measured = self._layers(probe, first=True)
            self._probe, self._keeps = probe, bytes_of(measured) <= LARGE
            about = {
                "every": self._every,
                "model": describe(self._model),
                "matrices": self._keeps,
                "not_traced": self._not_traced,
            }
            known = record.begin(about, measured)
            probe.save(record.folder.probe)
            if known:
                self._alarms = Alarms(known[0]["layers"])
                self._measured = known[-1]["step"]
            if self._measured != self._steps:
                self._take(record, measured, snapshot=record.last_snapshot != self._steps)

    # Steps

    def step(self, loss: Tensor | float | None = None, **values: float) -> None:
        """Count a step; call it after the optimizer's step.

        Args: loss: of the step. values: other numbers to show, such as validation_loss=1.2 or
        learning_rate=1e-4.
        """
        if self._stack is None and not self._ended:
            raise InputError("monitor: enter it first: with headloom.monitor(...) as monitor: ...")
        self.reach(self._steps + 1, loss, **values)

    def reach(self, step: int, loss: Tensor | float | None = None, **values: float) -> None:
        """Set the number of steps, like `step`, for callers that count them and may skip some."""
        if self._ended:
            return
        before, self._steps = min(self._steps, step - 1), step
        if self._probe is None:
            self._warn_once(
                "no probe",
                f"the {type(self._model).__name__} was not called, or is compiled, so there is no "
                "probe and nothing is measured. Give probe=: a tensor for each argument of the "
                "model.",
            )
            return
        if loss is not None:
            # Kept as a tensor, to avoid waiting for the device.
            self._losses.append(loss.detach() if isinstance(loss, Tensor) else float(loss))
        with self._errors_as_warnings(f"step {step:,}"):
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
        with self._errors_as_warnings("a report"):
            numbers = {name: float(value) for name, value in values.items()}
            finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
            for name in numbers.keys() - finite.keys():
                self._warn_once(name, f"step {self._steps:,}: {name} is {numbers[name]}")
            self._loss = finite.get("loss", self._loss)
            if finite:
                self._record.folder.reports.append({"step": self._steps, **finite})

    def _report(self) -> None:
        """Report the mean loss of the steps since the last report."""
        losses, self._losses = self._losses, []
        if losses:
            self.report(loss=sum(float(loss) for loss in losses) / len(losses))

    # Measuring

    def _measure(self, *, snapshot: bool) -> None:
        if self._probe is not None and self._record is not None:
            with self._measuring():
                self._take(self._record, self._layers(self._probe), snapshot=snapshot)

    def _take(self, record: Record, measured: Sequence[MeasuredLayer], *, snapshot: bool) -> None:
        """Write the measures, log them to the sinks, and warn."""
        step = self._steps
        if snapshot:
            loss = self._losses[-1] if self._losses else self._loss
            record.add_snapshot(step, None if loss is None else float(loss), measured, self._keeps)
        if self._measured == step:
            return
        alarms = self._alarms.check(step, measured)
        record.add(step, measured, alarms, self._time())
        self._measured = step
        for sink in self._sinks:
            try:
                sink.log(step, values_of(measured))
            except Exception as error:
                # A logger that fails must not end a training.
                name = type(sink).__name__
                self._warn_once(name, f"{name}: {in_words(error)}")
        for alarm in alarms:
            self.warnings.append(alarm["text"])
            warn(alarm["text"])

    def _layers(self, probe: Probe, first: bool = False) -> list[MeasuredLayer]:
        """Trace the model on the probe, and return the measured layers."""
        options = replace(self._options, sampled=first)
        with (
            unchanged(self._model), random_state_restored(), probe.computing(),
            warnings.catch_warnings(),
        ):  # fmt: skip
            if not first:
                # These warnings were issued at the first measure.
                warnings.simplefilter("ignore")
            traced = trace_with(self._model, dict(probe.inputs), options)
            traces: Sequence[TraceData] = traced if isinstance(traced, list) else [traced]
            self._not_traced = [dict(entry) for entry in traces[0].not_traced]
            return measured_layers(self._model, traces)

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        """Count the time of a block, in which the model's calls are the monitor's own."""
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
    def _errors_as_warnings(self, when: str) -> Iterator[None]:
        """Turn errors into warnings: the training is more important than its measures."""
        try:
            yield
        except Exception as error:
            text = f"{when}: {in_words(error)}. The training goes on."
            self._warn_once(type(error).__name__, text)

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warn(text)

    def _time(self) -> float:
        """Return the seconds since the monitor was entered."""
        return self._elapsed if self._clock is None else time.perf_counter() - self._clock

    @property
    def overhead(self) -> float:
        """Time of the monitor as a share of the rest: 0.01 is 1 percent."""
        rest = self._time() - self._spent
        return self._spent / rest if rest > 0 else 0.0


#: Alias in lower case.
monitor = Monitor
