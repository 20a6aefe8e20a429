# SPDX-License-Identifier: Apache-2.0
"""The JSON-lines side of an adapter: ``python -m ec_verify.kit.stdio NAME``.

Serves a Python adapter over standard input and output, one request line and one answer
line per operation. For adapters in Python it only shows the format; a program in
another language answers the same lines::

    {"op": "has", "args": {"now": 1000.0, "request": {...}, "item": 0}}
    {"result": {"has": false}, "out": []}

An operation that the implementation has not: ``{"unsupported": "why"}``. One that
failed: ``{"error": "what"}``. A program that supports nothing at all exits with 127.
"""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

from ec_verify.kit.adapter import OPERATIONS, Factory, Unsupported
from ec_verify.kit.runner import load_factory


def answer(adapter: Any, line: str) -> dict[str, Any]:
    """The answer to one request line."""
    try:
        request = json.loads(line)
        op, args = request["op"], request["args"]
    except (ValueError, KeyError, TypeError) as exc:
        return {"error": f"no request: {exc!r}"}
    method = getattr(adapter, op, None)
    if op not in OPERATIONS or method is None:
        return {"unsupported": str(op)}
    try:
        result = method(**args) or {}
    except (Unsupported, NotImplementedError) as exc:
        return {"unsupported": str(exc) or op}
    except Exception as exc:
        return {"error": f"{type(exc).__name__}: {exc}"}
    return {"result": result, "out": adapter.drain()}


def serve(factory: Factory, source: TextIO, target: TextIO) -> None:
    """Answer lines until there are no more."""
    adapter = factory()
    try:
        for line in source:
            target.write(json.dumps(answer(adapter, line)) + "\n")
            target.flush()
    finally:
        close = getattr(adapter, "close", None)
        if close is not None:
            close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m ec_verify.kit.stdio NAME|module:factory")
    serve(load_factory(sys.argv[1]), sys.stdin, sys.stdout)
