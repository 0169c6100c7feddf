"""What a thread makes, for the event loop to take."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

Result = TypeVar("Result")


class ResultQueue(Generic[Result]):
    """A thread puts in, one task of the event loop takes out all that is there. It is woken only where it waits."""

    def __init__(self) -> None:
        """To be made in the event loop."""
        self.closed = False  # nothing more will come
        self._items: deque[Result] = deque()
        self._loop, self._event, self._waiting = asyncio.get_running_loop(), asyncio.Event(), False

    def put(self, item: Result) -> None:
        """Leave something to be taken; called by the thread."""
        self._items.append(item)
        if self._waiting:
            self._wake()

    def close(self) -> None:
        """Tell that nothing more will come; called by the thread."""
        self.closed = True
        self._wake()

    async def get_all(self) -> list[Result]:
        """All that was made since the last time, at least one; nothing where nothing more will come."""
        while not (self._items or self.closed):
            self._event.clear()
            self._waiting = True
            if not (self._items or self.closed):  # what came before the thread could see that somebody waits
                await self._event.wait()
        self._waiting = False
        return [self._items.popleft() for _ in range(len(self._items))]

    async def wait_closed(self, seconds: float) -> None:
        """Let more be made, for some time at most: until nothing more will come."""
        self._event.clear()
        if self.closed:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()

    def _wake(self) -> None:
        self._waiting = False
        with suppress(RuntimeError):  # a loop that has ended waits for nothing
            self._loop.call_soon_threadsafe(self._event.set)
