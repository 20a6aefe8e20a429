# SPDX-License-Identifier: Apache-2.0
"""The `ec-connector` command.

Exit status: 0 only when the command's result is ok; 1 when it is not, or when it
could not be carried out; 2 for a wrong command line. With `--json` stdout holds
one JSON document and nothing else, whatever happens.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ec_connector.proxy.command import proxy
from ec_protocol import __version__
from ec_protocol.errors import ECError

if TYPE_CHECKING:
    from ec_connector.demo.report import RunName

# What the demo imports beyond the base installation: module -> distribution.
_DEMO_NEEDS = {"PIL": "pillow", "msgspec": "msgspec", "nixl": "nixl", "zmq": "pyzmq"}
# What listening to events needs.
_EVENTS_NEED = {"msgspec": "msgspec", "zmq": "pyzmq"}

app = typer.Typer(
    name="ec-connector",
    help="Encoder-cache connector: shared-memory tier and peer-to-peer READs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


app.command()(proxy)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ec-connector {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    images: Annotated[
        Path | None,
        typer.Option(
            help="Folder of pictures (png, jpg, webp). Without it a few are drawn.",
            show_default=False,
        ),
    ] = None,
    runs: Annotated[
        str, typer.Option(help="Which runs, separated by commas.")
    ] = "p2p,local,producer-killed",
    timeout: Annotated[
        float, typer.Option(help="Seconds that one run may take before it is stopped.")
    ] = 120.0,
    keep_logs: Annotated[
        bool, typer.Option("--keep-logs", help="Keep the processes' logs and say where.")
    ] = False,
    traces: Annotated[
        Path | None,
        typer.Option(help="Folder for traces, for ec-protocol trace check.", show_default=False),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout.")
    ] = False,
) -> None:
    """Move real encodings between two processes and compare them bit for bit.

    A producer encodes pictures into its shared-memory region; a consumer pulls
    them over ZMQ and NIXL into its own, loads them back, and compares them with
    its own encoding. Then the same inside one process (local), and with the
    producer killed in the middle, where the consumer must fall back.
    """
    wanted = _parse_runs(runs)
    if not timeout > 0:
        raise typer.BadParameter(f"{timeout:g}: must be more than 0", param_hint="--timeout")
    missing = [dist for module, dist in _DEMO_NEEDS.items() if not importlib.util.find_spec(module)]
    if missing:
        _fail(
            f"the demo needs {', '.join(missing)}",
            "install them with: pip install 'ec-connector[demo]'",
            as_json,
        )

    # Imported here so that --help does not wait for torch.
    from rich.console import Console

    from ec_connector.demo import images as pictures_of
    from ec_connector.demo import report
    from ec_connector.demo.main import run_demo

    err = Console(stderr=True, highlight=False)
    try:
        if images is None:
            pictures = pictures_of.draw_pictures()
        else:
            pictures = pictures_of.load_folder(
                images, on_skip=lambda message: err.print(f"note: {message}", markup=False)
            )
        rows = run_demo(
            pictures, runs=wanted, timeout_s=timeout, keep_logs=keep_logs, traces=traces
        )
    except ECError as error:
        _fail(str(error), "", as_json)
    if as_json:
        typer.echo(report.to_json(rows))
    else:
        report.print_report(rows, Console(highlight=False, width=max(110, err.width)))
    if not report.all_ok(rows):
        if not keep_logs:
            err.print("Run again with --keep-logs to see what each process did.")
        raise typer.Exit(1)


@app.command()
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="copy, core, tier, ack, read, startup, processes or all; or deaths, alone.",
            show_default="all",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer repetitions, smaller regions: a smoke test.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="Folder for one PNG per benchmark.", show_default=False),
    ] = None,
    count: Annotated[
        int, typer.Option(min=1, help="deaths: how many processes are killed; --quick: 20.")
    ] = 1000,
    seed: Annotated[int, typer.Option(help="deaths: which, in what order, asked for what.")] = 1,
) -> None:
    """Measure against hand-written baselines, and vLLM's classes where installed.

    Both sides of a row are measured in the same run, in turns. Only the ratios say
    something about the code; the figures are the machine's.
    """
    # Imported here so that --help does not wait for torch.
    from rich.console import Console
    from rich.table import Table

    from ec_connector.bench import main as benches
    from ec_connector.bench import rows as results

    err = Console(stderr=True, highlight=False)
    try:
        chosen = benches.choose(names or [])
        if chosen == ["deaths"]:
            _deaths(20 if quick else count, seed, quick, as_json)
            return
        rows = benches.run(
            chosen, quick, on_start=lambda name: err.print(f"{name} ...", markup=False)
        )
        if plot is not None:
            from ec_connector.bench.plots import plot as draw

            machine = results.machine()
            subtitle = f"{machine['gpu'] or 'no GPU'}, {machine['cpus']} CPUs"
            for path in draw(rows, plot, subtitle):
                err.print(f"wrote {path}", markup=False)
    except ECError as error:
        _fail(str(error), "", as_json, {"machine": results.machine(), "rows": []})
    if as_json:
        typer.echo(json.dumps(results.document(rows)))
        return
    table = Table("bench", "case", box=None, pad_edge=False)
    for heading in ("ours", "baseline", "unit", "ratio"):
        table.add_column(heading, justify="left" if heading == "unit" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.bench,
            row.case,
            f"{row.ours:.4g}",
            f"{row.baseline:.4g}",
            row.unit,
            f"{row.ratio:.3g}",
        )
    Console(highlight=False, width=max(110, err.width)).print(table)


def _deaths(count: int, seed: int, quick: bool, as_json: bool) -> None:
    """``bench deaths``; exits 1 if anything is wrong."""
    from rich.console import Console

    from ec_connector.bench.deaths import run_deaths
    from ec_connector.demo.report import progress_bar

    with progress_bar(count) as step:
        report = run_deaths(count, seed, stall_s=1.0 if quick else 2.0, step=step)
    if as_json:
        typer.echo(json.dumps(report.document()))
    else:
        report.print(Console(highlight=False, width=max(110, Console(stderr=True).width)))
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def events(
    endpoint: Annotated[str, typer.Argument(help="A server's ec_events_endpoint, from here.")],
    replay: Annotated[
        str | None,
        typer.Option(
            help="Its ec_events_replay_endpoint: begin with what it still keeps.",
            show_default=False,
        ),
    ] = None,
    topic: Annotated[str, typer.Option(help="Its ec_events_topic.")] = "ec",
    count: Annotated[
        int, typer.Option(help="Stop after so many lines; 0 goes on until interrupted.")
    ] = 0,
) -> None:
    """Print what happens to a server's encodings, one JSON object a line."""
    missing = [dist for mod, dist in _EVENTS_NEED.items() if not importlib.util.find_spec(mod)]
    if missing:
        _fail(
            f"listening to events needs {', '.join(missing)}",
            "install them with: pip install 'ec-connector[events]'",
            False,
        )
    from ec_connector.events.subscriber import EventSubscriber, lines_of

    try:
        subscriber = EventSubscriber(endpoint, replay, topic)
    except ECError as error:
        _fail(str(error), "", False)
    printed = 0
    try:
        while True:
            for update in subscriber.poll(1.0):
                for line in lines_of(update):
                    typer.echo(json.dumps(line))
                    printed += 1
                    if printed == count:
                        return
    except KeyboardInterrupt:
        return
    finally:
        subscriber.close()


def _parse_runs(text: str) -> list[RunName]:
    """The runs named on the command line, in the order given, each once."""
    from ec_connector.demo.report import RUN_NAMES

    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [name for name in names if name not in RUN_NAMES]
    if unknown or not names:
        problem = f"{', '.join(unknown)}: no such run" if unknown else "no run named"
        raise typer.BadParameter(
            f"{problem}; choose from {', '.join(RUN_NAMES)}", param_hint="--runs"
        )
    return [known for name in names for known in RUN_NAMES if known == name]


def _fail(
    problem: str, next_step: str, as_json: bool, empty: dict[str, Any] | None = None
) -> NoReturn:
    """Report a command that could not be carried out, and exit 1.

    Args:
        problem: What is wrong.
        next_step: What to do about it; may be empty.
        as_json: Whether a JSON document is owed on stdout.
        empty: That document without results; left out, the demo's.
    """
    text = f"{problem}: {next_step}" if next_step else problem
    if as_json:
        document = {"ok": False, "runs": []} if empty is None else empty
        typer.echo(json.dumps({**document, "error": text}))
    typer.echo(f"error: {text}", err=True)
    raise typer.Exit(1)


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
