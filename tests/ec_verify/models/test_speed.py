# SPDX-License-Identifier: Apache-2.0
"""The models that a newcomer waits for, and the others, are all of a pull request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from ec_protocol.tables.files import tla_dir
from ec_verify import cli
from ec_verify.models.check import Report
from ec_verify.models.manifest import Model, load_manifest
from ec_verify.models.speed import QUICK_SECONDS, of_speed

#: Half of what make test may take, two models at once.
MOST_S = 240.0


def test_quick_and_long_are_all_and_quick_is_quick() -> None:
    models = load_manifest(tla_dir()).select([], "pr")
    quick, long = of_speed(models, quick=True), of_speed(models, quick=False)
    names = [{model.name for model in some} for some in (quick, long)]
    assert names[0] | names[1] == {model.name for model in models}
    assert not names[0] & names[1]
    assert sum(model.seconds or 0.0 for model in quick) < MOST_S
    # Each kind of check is there, so a newcomer sees a broken toolchain.
    assert {"bug", "exhaustive", "liveness", "edges"} <= {model.mode for model in quick}


def test_the_bound_itself_and_a_model_without_a_pin_are_not_quick() -> None:
    model = load_manifest(tla_dir()).models[0]
    below, at, new = (
        replace(model, name=str(s), seconds=s) for s in (QUICK_SECONDS - 0.1, QUICK_SECONDS, None)
    )
    assert of_speed([below, at, new], quick=True) == (below,)
    assert of_speed([below, at, new], quick=False) == (at, new)


@pytest.mark.parametrize("tier", ["quick", "long"])
def test_check_runs_one_or_the_other(monkeypatch: pytest.MonkeyPatch, tier: str) -> None:
    seen: list[Model] = []

    def run_models(models: list[Model], *_: Any, **__: Any) -> list[Report]:
        seen.extend(models)
        return []

    monkeypatch.setattr(cli, "run_models", run_models)
    done = CliRunner().invoke(cli.app, ["check", "--tier", tier])
    assert done.exit_code == 0, done.output
    known = load_manifest(tla_dir()).select([], "pr")
    assert tuple(seen) == of_speed(known, quick=tier == "quick")


def test_a_model_that_is_named_runs_whatever_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def run_models(models: list[Model], *_: Any, **__: Any) -> list[Report]:
        seen.extend(model.name for model in models)
        return []

    monkeypatch.setattr(cli, "run_models", run_models)
    CliRunner().invoke(cli.app, ["check", "--tier", "quick", "MCPeerReadRetry"])
    assert seen == ["MCPeerReadRetry"]
