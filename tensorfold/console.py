"""What commands tell on standard error: lines, and how far they are."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from tensorfold.checkpoints.interface import Progress as ProgressEvent

console = Console(stderr=True)

_STATUS_SECONDS = 10.0
"""Between the lines of a status where there is no terminal, at the least."""

_TASKS = {
    "load": "loading the weights",
    "convert": "converting the weights",
    "compile": "compiling; a first start takes a minute",
}


def say(line: str) -> None:
    """Print a line as it is."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def show_status(doing: str) -> Iterator[Callable[[str], None]]:
    """Show what is done and how far it is: in place on a terminal, else a line now and then."""
    if console.is_terminal:
        with console.status(doing) as status:
            yield lambda line: status.update(line)
        return
    said = time.monotonic()

    def tell(line: str) -> None:
        nonlocal said
        if time.monotonic() - said >= _STATUS_SECONDS:
            said = time.monotonic()
            say(f"{doing}: {line}")

    yield tell


@contextmanager
def show_progress() -> Iterator[Callable[[ProgressEvent], None]]:
    """Show progress events: as bars that vanish on a terminal, else a line for each task."""
    if not console.is_terminal:
        begun: set[str] = set()

        def tell(event: ProgressEvent) -> None:
            if event.task not in begun:
                begun.add(event.task)
                say(_TASKS.get(event.task, event.task))

        yield tell
        return
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(event: ProgressEvent) -> None:
            if event.task not in tasks:
                title = _TASKS.get(event.task, event.task)
                tasks[event.task] = bars.add_task(title, total=None)
            bars.update(tasks[event.task], completed=event.done, total=event.total or None)

        yield show
