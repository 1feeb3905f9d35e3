"""An event loop in a thread of its own that makes items ahead of the one who takes them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

Admit = Callable[[int], Awaitable[None]]
"""Waits until there is room for so many bytes; to be called once by what makes an item."""

END = object()
"""What an engine gives after the last item."""

GRACE_S = 5.0
"""How long closing waits for the thread, which a read that does not end may hold up, in seconds."""


class Engine(Generic[Item]):
    """Makes items in order, several at a time, as far ahead as the bounds allow.

    Its methods are for the thread that takes the items; only `close` is for any.

    Parameters
    ----------
    makers : iterable of functions
        Each returns the coroutine that makes an item, and that learns from the `Admit` which it
        is given when there is room for the item's bytes.
    max_bytes : int
        Bytes of items being made or waiting to be taken; one item is made whatever its bytes.
    max_items : int
        Number of these items, at least 1.
    """

    def __init__(
        self,
        makers: Iterable[Callable[[Admit], Coroutine[Any, Any, Item]]],
        max_bytes: int,
        max_items: int,
    ) -> None:
        self._makers = enumerate(makers)
        self._max_items = max_items
        self._room = Room(max_bytes)
        self._ahead = deque[Future[Item]]()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        # Given only the loop: the thread keeps neither the engine nor its items alive.
        self._thread = threading.Thread(
            target=_run, args=(self._loop,), name="tiledvol-loader", daemon=True
        )
        self._thread.start()
        self._start_more()

    @property
    def ready(self) -> int:
        """Number of items that wait to be taken."""
        return sum(item.done() for item in tuple(self._ahead))

    def take(self) -> Item | object:
        """Wait for the next item and return it, or `END`; errors of its making are raised."""
        if not self._ahead:
            return END
        if self._closed:
            raise _closed()
        try:
            item = self._ahead[0].result()
        except CancelledError:
            raise _closed() from None
        self._advance()
        return item

    async def take_async(self) -> Item | object:
        """Do the same without blocking the caller's event loop. Cancelled, it takes nothing."""
        if not self._ahead:
            return END
        if self._closed:
            raise _closed()
        try:
            item = await asyncio.shield(asyncio.wrap_future(self._ahead[0]))
        except asyncio.CancelledError:
            if self._closed:
                raise _closed() from None
            raise
        self._advance()
        return item

    def close(self) -> None:
        """Stop what is under way, and end the thread; there is nothing to take afterwards."""
        if not self._closed:
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:  # the garbage collector runs anywhere
            self._thread.join(GRACE_S)

    def _advance(self) -> None:
        self._ahead.popleft()
        if not self._closed:
            self._loop.call_soon_threadsafe(self._room.leave)
            self._start_more()

    def _start_more(self) -> None:
        while len(self._ahead) < self._max_items and (next_ := next(self._makers, None)):
            number, make = next_
            making = make(partial(self._room.enter, number))
            self._ahead.append(asyncio.run_coroutine_threadsafe(making, self._loop))


class Room:
    """Lets items in, in order, while the bytes of those inside stay within a bound."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._inside = deque[int]()
        self._waiting: dict[int, tuple[int, asyncio.Future[None]]] = {}
        self._turn = 0

    async def enter(self, number: int, size: int) -> None:
        """Wait until the items before this one are in, and its bytes fit or it is alone."""
        admitted = asyncio.get_running_loop().create_future()
        self._waiting[number] = (size, admitted)
        self._let_in()
        await admitted

    def leave(self) -> None:
        """Let the first of the items inside out: it has been taken."""
        self._inside.popleft()
        self._let_in()

    def _let_in(self) -> None:
        while self._turn in self._waiting:
            size, admitted = self._waiting[self._turn]
            if self._inside and sum(self._inside) + size > self._max_bytes:
                return
            del self._waiting[self._turn]
            self._turn += 1
            self._inside.append(size)
            if not admitted.cancelled():
                admitted.set_result(None)


def _closed() -> RuntimeError:
    return RuntimeError(
        "this iteration has ended: the loader was closed, or is gone through anew; a loader has "
        "one iteration at a time"
    )


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, and leave nothing of it behind."""
    asyncio.set_event_loop(loop)
    with ThreadPoolExecutor(thread_name_prefix="tiledvol-loader") as executor:
        loop.set_default_executor(executor)
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        executor.shutdown(wait=False, cancel_futures=True)
    loop.close()
