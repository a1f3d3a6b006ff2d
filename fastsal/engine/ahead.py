"""Computing one step ahead in a thread of one's own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")


def computed_ahead(steps: Sequence[Callable[[], T]]) -> Generator[T, None, None]:
    """Yield the results of `steps` in order, each computed in a background thread while the one before it is used.

    A generator: closing it waits for the step in work, and an exception of a step is raised at its place. No executor,
    which refuses work once the main thread has ended; where Python starts no threads any more (it is shutting down),
    the steps run one after the other.
    """
    if len(steps) == 1:
        yield steps[0]()
        return
    results: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue()
    wanted = threading.Semaphore(1)
    stopped = False

    def work() -> None:
        for step in steps:
            wanted.acquire()
            if stopped:
                return
            try:
                results.put((step(), None))
            except BaseException as error:
                results.put((None, error))
                return

    thread = threading.Thread(target=work, name="fastsal-ahead", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        for step in steps:
            yield step()
        return
    try:
        for _ in steps:
            result, error = results.get()
            if error is not None:
                raise error
            wanted.release()
            yield result  # type: ignore[misc]
    finally:
        stopped = True
        wanted.release()
        thread.join()
