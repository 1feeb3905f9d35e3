"""Work done one step ahead in a thread, for sources whose slabs come from a stream."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import TypeVar

T = TypeVar("T")

BUFFERS = 3
"""Buffers that items need when the consumer keeps two of them: the third is being filled."""


@dataclass(frozen=True)
class _End:
    """The producer is done; ``error`` is what stopped it, if anything did."""

    error: BaseException | None


def read_ahead(produce: Callable[[Event], Generator[T, None, None]]) -> Iterator[T]:
    """Yield what ``produce`` yields, each item made in a thread while its predecessor is in use.

    Item k is begun when item k - 1 has been handed out, and never before. An item may therefore
    reuse the memory of item k - `BUFFERS` where the consumer lets go of an item once two further
    ones have been handed out. What ``produce`` does after its last item is done before the
    iterator ends; what it raises, the iterator raises.

    Closing the iterator, or dropping it, ends the thread.

    Parameters
    ----------
    produce : callable
        Returns the items. It is called in the thread with an event: once that is set nobody
        waits for further items, and it should return soon.
    """
    stop = Event()
    wanted = Semaphore(1)
    made: SimpleQueue[T | _End] = SimpleQueue()
    thread = Thread(
        target=_work, args=(produce, stop, wanted, made), name="tiledvol-read", daemon=True
    )
    thread.start()
    try:
        while not isinstance(item := made.get(), _End):
            wanted.release()
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stop.set()
        wanted.release()
        thread.join()


def _work(
    produce: Callable[[Event], Generator[T, None, None]],
    stop: Event,
    wanted: Semaphore,
    made: SimpleQueue[T | _End],
) -> None:
    """Put items into ``made`` as they are ``wanted``, and an `_End` after the last."""
    error: BaseException | None = None
    try:
        with closing(produce(stop)) as items:
            while wanted.acquire() and not stop.is_set():
                made.put(next(items))
    except StopIteration:
        pass
    except BaseException as raised:
        error = raised
    finally:
        made.put(_End(error))
