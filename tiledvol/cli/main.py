"""The program ``tiledvol``: its commands, and what a user sees when one fails."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import tiledvol
from tiledvol.cli.bench import bench
from tiledvol.cli.convert import convert
from tiledvol.cli.demo import demo
from tiledvol.cli.export import export
from tiledvol.cli.info import info
from tiledvol.cli.ls import ls
from tiledvol.cli.output import note
from tiledvol.cli.reindex import reindex
from tiledvol.cli.verify import verify
from tiledvol.errors import TiledvolError

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 and the signal's number, as of a shell."""


class Commands(TyperGroup):
    """The commands; their errors end as one line and an exit code, not as a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command asked for."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # `tiledvol ls | head`: typer ends the program quietly
            raise
        except TiledvolError as error:
            _fail(str(error), 1)
        except OSError as error:
            _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
        except KeyboardInterrupt as interrupt:
            _fail(": ".join(("interrupted", *map(str, interrupt.args))), INTERRUPTED)
        else:
            return result


def _fail(message: str, code: int) -> None:
    note(f"tiledvol: {message}", style="red")
    raise typer.Exit(code)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

EXAMPLES: dict[Callable[..., None], str] = {
    convert: "tiledvol convert imagesTr labelsTr out.tvol",
    info: "tiledvol info out.tvol case_001/ct",
    ls: "tiledvol ls out.tvol 'case_0*'",
    verify: "tiledvol verify out.tvol case_001",
    export: "tiledvol export out.tvol case_001/ct ct.nii.gz",
    reindex: "tiledvol reindex out.tvol",
    bench: "tiledvol bench out.tvol --patch 128 --batch 2 --step-ms 100",
    demo: "tiledvol demo",
}

for _command, _example in EXAMPLES.items():
    app.command(epilog=f"Example: {_example}")(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tiledvol {tiledvol.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Tiled storage of CT and MR volumes: convert once, then read only what is needed."""


def main() -> None:
    """Run the program."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # a terminal that cannot show × or ³ gets a ?
            reconfigure(errors="replace")
    app()
