"""An event loop in a thread of its own that makes batches ahead of the one who takes them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

END = object()
"""What `Engine.take` returns after the last item."""


class Engine(Generic[Item]):
    """Makes items in order, several at a time, as far ahead as the budgets allow.

    Parameters
    ----------
    jobs : iterable of (cost, make)
        For each item its cost in bytes and a function that returns the coroutine making it.
    max_bytes : int
        Bytes of items being made or waiting to be taken; one item is made whatever its cost.
    max_items : int
        Number of these items, at least 1.
    """

    def __init__(
        self,
        jobs: Iterable[tuple[int, Callable[[], Coroutine[Any, Any, Item]]]],
        max_bytes: int,
        max_items: int,
    ) -> None:
        self._jobs = iter(jobs)
        self._job = next(self._jobs, None)
        self._max_bytes = max_bytes
        self._max_items = max_items
        self._bytes = 0
        self._made: deque[tuple[int, asyncio.Task[Item]]] = deque()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tiledvol-loader", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> int:
        """Number of items that wait to be taken."""
        return sum(task.done() for _, task in tuple(self._made))

    def take(self) -> Item | object:
        """Wait for the next item and return it, or `END`; errors of its making are raised."""
        return self._submit().result()

    async def take_async(self) -> Item | object:
        """Do the same from another event loop."""
        return await asyncio.wrap_future(self._submit())

    def close(self) -> None:
        """Stop what is under way, and end the thread; nothing can be taken afterwards."""
        if self._thread.is_alive() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join()

    def _submit(self) -> Future[Item | object]:
        return asyncio.run_coroutine_threadsafe(self._next(), self._loop)

    async def _next(self) -> Item | object:
        self._fill()
        if not self._made:
            return END
        cost, task = self._made[0]
        try:
            return await task
        finally:
            self._made.popleft()
            self._bytes -= cost
            self._fill()

    def _fill(self) -> None:
        """Start items while there is room."""
        while self._job is not None and len(self._made) < self._max_items:
            cost, make = self._job
            if self._made and self._bytes + cost > self._max_bytes:
                return
            self._bytes += cost
            self._made.append((cost, self._loop.create_task(make())))
            self._job = next(self._jobs, None)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(self._fill)
        try:
            self._loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


async def iterate(engine: Engine[Item]) -> AsyncIterator[Item]:
    """Yield an engine's items in the caller's event loop."""
    while (item := await engine.take_async()) is not END:
        yield item  # type: ignore[misc]
