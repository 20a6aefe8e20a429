# SPDX-License-Identifier: Apache-2.0
"""Small models and recorded outputs for the tests of the formal tools."""

import shutil
from pathlib import Path

from ec_protocol.tables.files import tla_dir
from ec_verify.models.check import Report
from ec_verify.models.manifest import Model
from ec_verify.models.output import Output, parse_output

HERE = Path(__file__).resolve().parent


def copy_models(target: Path) -> Path:
    """A folder with its own manifest, models and Lifecycle.tla, free to be changed."""
    shutil.copytree(HERE / "models", target)
    (target / "common").mkdir()
    shutil.copy(tla_dir() / "common" / "Lifecycle.tla", target / "common")
    return target


def rewrite(path: Path, *changes: tuple[str, str]) -> None:
    """Replace texts that stand once in a file."""
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, (path, old)
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def recorded(name: str) -> tuple[str, int]:
    """What TLC 2.15 printed, and its exit status, which the file's name holds."""
    (path,) = (HERE / "outputs").glob(f"{name}.*.txt")
    return path.read_text(encoding="utf-8"), int(path.suffixes[0][1:])


def parsed(name: str) -> Output:
    text, exit_code = recorded(name)
    return parse_output(text, exit_code, searched_all=not name.startswith("simulation"))


class Silent:
    """A watcher that remembers what it was told."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def started(self, model: Model) -> None:
        self.seen.append(("started", model.name))

    def progress(self, model: Model, distinct: int) -> None:
        self.seen.append(("progress", model.name))

    def finished(self, report: Report) -> None:
        self.seen.append(("finished", report.model.name))
