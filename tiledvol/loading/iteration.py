"""Going through an epoch, in an ordinary loop or an asyncio one."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, TypeVar, cast

from tiledvol.loading.engine import END, Engine

Item = TypeVar("Item")
Batch = dict[str, Any]


class BatchIterator(Iterator[Batch], AsyncIterator[Batch], Generic[Item]):
    """Takes what an engine makes; ends the engine when it is through, fails, or is dropped.

    Parameters
    ----------
    engine : Engine
        Makes the batches.
    deliver : function
        Returns the batch of an item that was waited for for so many seconds.
    finish : function
        Called after the last batch.
    """

    def __init__(
        self,
        engine: Engine[Item],
        deliver: Callable[[Item, float], Batch],
        finish: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._finish = finish
        # Also called at exit. A generator would do as much, but not an async one: those are
        # closed by their event loop, which may be gone by then.
        self._close = weakref.finalize(self, engine.close)

    @property
    def ready(self) -> int:
        """Number of batches that wait to be taken."""
        return self._engine.ready

    def __iter__(self) -> BatchIterator[Item]:
        return self

    def __aiter__(self) -> BatchIterator[Item]:
        return self

    def __next__(self) -> Batch:
        began = time.perf_counter()
        try:
            item = self._engine.take()
        except BaseException:
            self.close()
            raise
        if item is END:
            self._end()
            raise StopIteration
        return self._deliver(cast("Item", item), time.perf_counter() - began)

    async def __anext__(self) -> Batch:
        began = time.perf_counter()
        try:
            item = await self._engine.take_async()
        except asyncio.CancelledError:
            raise  # the caller may have set a time limit, and try again
        except BaseException:
            self.close()
            raise
        if item is END:
            self._end()
            raise StopAsyncIteration
        return self._deliver(cast("Item", item), time.perf_counter() - began)

    def close(self) -> None:
        """Stop reading ahead, and end the engine's thread."""
        self._close()

    def _end(self) -> None:
        if self._close.alive:
            self._finish()
        self.close()
