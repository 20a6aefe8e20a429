# SPDX-License-Identifier: Apache-2.0
"""What a test needs beyond this checkout, and what happens where that is missing.

On somebody's machine the test is skipped, with the reason. Where everything is required
(``EC_REQUIRE=all``, or ``CI`` as CI services set it) it fails: a package that is broken
there must not take whole modules out of the run in silence. Only hardware and rights that
no installation brings are skipped there too; pytest counts each reason in one line, since
all of them are raised here.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import NoReturn

import pytest

#: ``all``: a test that lacks something fails; anything else: it is skipped.
VARIABLE = "EC_REQUIRE"


def required() -> bool:
    """Whether whatever can be installed must be there."""
    said = os.environ.get(VARIABLE)
    if said is not None:
        return said == "all"
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def _skip(reason: str) -> NoReturn:
    pytest.skip(reason, allow_module_level=True)


def unmet(what: str) -> NoReturn:
    """Something that can be installed is not there."""
    if required():
        pytest.fail(f"{what}; here everything must be there ({VARIABLE}=all or CI)", pytrace=False)
    _skip(what)


def needs(*modules: str) -> None:
    """Packages that are imported; to be called before what needs them is imported."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            unmet(f"{module} is not installed: {error}")
        except Exception as error:
            unmet(f"{module} is broken: {error!r}")


def installed(module: str) -> None:
    """A package that takes long to import, or that only other processes import."""
    if importlib.util.find_spec(module) is None:
        unmet(f"{module} is not installed")


def that(is_so: bool, what: str) -> None:
    """Something else that an installation brings; ``what`` is said if it is not so."""
    if not is_so:
        unmet(what)


def optional(is_so: bool, what: str) -> None:
    """What no installation brings, as hardware or a right, or a larger session; never required."""
    if not is_so:
        _skip(what)


def check(item: pytest.Item) -> None:
    """What a test's marks say that it needs."""
    if item.get_closest_marker("cuda") is not None:
        import torch

        optional(torch.cuda.is_available(), "needs a CUDA device")
    if item.get_closest_marker("vllm") is not None:
        installed("vllm")
