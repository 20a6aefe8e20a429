# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: the conformance cases as tests of somebody else's test suite.

Installed with the package (entry point ``pytest11``) and silent until it is asked::

    pytest --ec-adapter mypackage.adapter:make
    pytest --ec-adapter-cmd "./my-adapter" --ec-case EC-5.3 --ec-scenarios tests/scenarios

Each case is one test item, ``ec-conformance::EC-5.3/1``. FAILED fails; NON-STRICT is an
expected failure, or fails with ``--ec-strict``; UNSUPPORTED is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ec_verify.kit.language.schedule import Case
    from ec_verify.kit.runner import Result


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options; without an adapter the plugin does nothing."""
    group = parser.getgroup("ec-conformance", "encoder-cache conformance cases")
    group.addoption(
        "--ec-adapter", metavar="NAME", help="adapter: ours, node, vllm or module:factory"
    )
    group.addoption("--ec-adapter-cmd", metavar="COMMAND", help="adapter that speaks JSON lines")
    group.addoption(
        "--ec-case",
        action="append",
        default=[],
        metavar="ID",
        help="case, clause, tag or area; may be repeated; all if left out",
    )
    group.addoption("--ec-scenarios", metavar="DIR", help="also the *.json files of this folder")
    group.addoption("--ec-strict", action="store_true", help="a missed SHOULD fails too")
    group.addoption("--ec-histories", metavar="DIR", help="save the histories of failures there")


def _wanted(config: pytest.Config) -> bool:
    return bool(config.getoption("--ec-adapter") or config.getoption("--ec-adapter-cmd"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add one item per case."""
    if _wanted(config):
        items.extend(Suite.from_parent(session, name="ec-conformance").collect())


class Suite(pytest.Collector):
    """The cases that were asked for."""

    def collect(self) -> Iterator[CaseItem]:
        """One item per case."""
        from ec_protocol.errors import ECError
        from ec_verify.kit.language.schedule import all_cases, select
        from ec_verify.kit.runner import connector

        option = self.config.getoption
        folder = option("--ec-scenarios")
        try:
            cases = select(all_cases(Path(folder) if folder else None), option("--ec-case"))
            name, connect = connector(option("--ec-adapter"), option("--ec-adapter-cmd"))
        except ECError as exc:
            raise pytest.UsageError(str(exc)) from exc
        for case in cases:
            yield CaseItem.from_parent(self, name=case.id, case=case, adapter=name, connect=connect)


class CaseFailed(Exception):
    """A case is not OK; carries the result for the report."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.detail)
        self.result = result


class CaseItem(pytest.Item):
    """One case."""

    def __init__(self, *, case: Case, adapter: str, connect: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.case = case
        self.adapter = adapter
        self.connect = connect
        self.user_properties.append(("clause", case.clause))

    def runtest(self) -> None:
        """Play the case."""
        from ec_verify.kit.runner import Verdict, run_case, save_history

        result = run_case(self.case, self.connect)
        if result.verdict is Verdict.OK:
            return
        if result.verdict is Verdict.UNSUPPORTED:
            pytest.skip(result.detail)
        folder = self.config.getoption("--ec-histories")
        if folder:
            save_history(result, self.adapter, Path(folder) / f"{result.file_name}.json")
        if result.verdict is Verdict.NON_STRICT and not self.config.getoption("--ec-strict"):
            pytest.xfail(result.detail)
        raise CaseFailed(result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Clause, requirement, expected and seen instead of a traceback of the kit."""
        if not isinstance(excinfo.value, CaseFailed):
            return super().repr_failure(excinfo)
        result = excinfo.value.result
        return "\n".join(
            (
                f"{result.verdict} {result.case.id} {result.case.title}",
                f"{result.clause}: {result.requirement}",
                result.detail,
            )
        )

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where the case is written."""
        return Path(self.case.file), 0, f"{self.case.id}: {self.case.title}"
