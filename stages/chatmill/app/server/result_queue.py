"""A queue from a thread to the event loop."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

Result = TypeVar("Result")


class ResultQueue(Generic[Result]):
    """A queue from one thread to one asyncio task, which gets all items at once and is woken only if it waits."""

    def __init__(self) -> None:
        """Must be called in the event loop."""
        self.closed = False
        self._items: deque[Result] = deque()
        self._loop, self._event, self._waiting = asyncio.get_running_loop(), asyncio.Event(), False

    def put(self, item: Result) -> None:
        """Add an item; called by the thread."""
        self._items.append(item)
        if self._waiting:
            self._wake()

    def close(self) -> None:
        """Close the queue after its last item; called by the thread."""
        self.closed = True
        self._wake()

    async def get_all(self) -> list[Result]:
        """Wait for items and return all that have come since the last call; [] if the queue is closed and empty."""
        while not (self._items or self.closed):
            self._event.clear()
            self._waiting = True
            if not (self._items or self.closed):  # an item may have come before the thread saw `_waiting`
                await self._event.wait()
        self._waiting = False
        return [self._items.popleft() for _ in range(len(self._items))]

    async def wait_closed(self, seconds: float) -> None:
        """Wait until the queue is closed, at most `seconds`, so that results gather."""
        self._event.clear()
        if self.closed:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()

    def _wake(self) -> None:
        self._waiting = False
        with suppress(RuntimeError):  # the event loop is closed already
            self._loop.call_soon_threadsafe(self._event.set)
