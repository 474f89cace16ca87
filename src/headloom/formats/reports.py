"""A file of reports along a training: one JSON object a line, each with its step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from headloom.errors import DataError
from headloom.formats.files import (
    JsonMapping,
    JsonObject,
    atomic_file,
    is_there,
    parse_json,
    read_text,
    reason_of,
)


@dataclass(frozen=True)
class Reports:
    """The reports of a file; `what` is what errors call it."""

    path: Path
    what: str

    def append(self, report: JsonMapping) -> None:
        """Add a report."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(report) + "\n")
        except OSError as error:
            raise DataError(
                f"cannot write {self.path}: {reason_of(error)}. Free some space, and give the "
                "command again: it goes on."
            ) from error

    def read(self) -> list[JsonObject]:
        """All reports; a last line that was cut off is left out."""
        if not is_there(self.path, self.what):
            return []
        reports = []
        lines = read_text(self.path, self.what).removesuffix("\n").split("\n")
        for number, line in enumerate(lines if lines != [""] else [], 1):
            try:
                report = parse_json(line, self.path, self.what)
            except DataError as error:
                if number < len(lines):
                    raise DataError(f"{self.path}: line {number} is damaged.") from error
                continue
            if (
                not isinstance(report, dict)
                or type(report.get("step")) is not int
                or not 0 <= report["step"] < 2**53
            ):
                raise DataError(
                    f"{self.path}: line {number} is damaged: expected an object with a step."
                )
            reports.append(report)
        return reports

    def rewind(self, step: int) -> None:
        """Forget reports of later steps, before the run goes on from this one."""
        reports = [report for report in self.read() if report["step"] <= step]
        with atomic_file(self.path) as temporary:
            temporary.write_text("".join(json.dumps(report) + "\n" for report in reports), "utf-8")
