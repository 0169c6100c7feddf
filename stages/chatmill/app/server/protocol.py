"""HTTP as uvicorn speaks it, but for what is no HTTP, comes too slowly, or from too many: they get an error as well."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from chatmill.app.server.errors import Refusal
from chatmill.app.server.guard import HEADERS, MOST_HEADER_BYTES

MOST_CONNECTIONS = 512
HEADER_SECONDS = 10  # for them to arrive
LISTENER_SECONDS = 30  # in which a client must take what was sent


class Protocol(H11Protocol):
    """One connection."""

    _timer: asyncio.TimerHandle | None = None
    _unheard: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Take a connection, unless there are too many."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # what is not taken at once is waited for
        if len(self.connections) > MOST_CONNECTIONS:
            self._refuse(Refusal(503, f"{MOST_CONNECTIONS} connections are open already"))
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._unwatch()
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a stretch of a request."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._watch()

    def pause_writing(self) -> None:
        """Send no more for now, and nothing at all to a client that takes nothing for some time."""
        super().pause_writing()
        self._unheard = self.loop.call_later(LISTENER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Send on."""
        self._stop_waiting()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._refuse(
            Refusal(400, f"{msg.rstrip('.')}: expected HTTP, and headers of at most {MOST_HEADER_BYTES:,} bytes")
        )

    def _watch(self) -> None:
        """Give a request that has not begun, is within its headers, or was answered before its end, some time."""
        if self._is_answering():
            self._unwatch()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self._too_slow)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_waiting(self) -> None:
        if self._unheard is not None:
            self._unheard.cancel()
            self._unheard = None

    def _should_upgrade(self) -> bool:
        """Whatever a client would rather speak, it is answered in HTTP."""
        return False

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _too_slow(self) -> None:
        if self.cycle is None or self.conn.trailing_data[0]:
            self._refuse(Refusal(408, f"the request did not come within {HEADER_SECONDS} seconds"))
        else:  # nobody asked
            self.transport.close()

    def _refuse(self, error: Refusal) -> None:
        """Send an error and close; where an answer has begun already, close."""
        self._unwatch()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = error.response()
            response.headers.update(HEADERS)
            headers = [*response.raw_headers, (b"connection", b"close")]
            for event in (
                h11.Response(status_code=error.status, headers=headers),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        if self.cycle is not None:
            self.cycle.disconnected = True  # it sends nothing after this
            self.cycle.message_event.set()
        self.transport.close()
