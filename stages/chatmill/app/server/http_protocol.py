"""Uvicorn's HTTP protocol with limits: malformed or slow requests and excess connections get an error response."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from chatmill.app.server.api_errors import ApiError
from chatmill.app.server.security import MAX_HEADER_BYTES, SECURITY_HEADERS

MAX_CONNECTIONS = 512
HEADER_SECONDS = 10  # in which the headers of a request must arrive
WRITE_TIMEOUT_SECONDS = 30  # in which a client must read what was sent


class LimitedProtocol(H11Protocol):
    """One connection."""

    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Accept a connection, unless too many are open."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # pause writing as soon as the client reads too slowly
        if len(self.connections) > MAX_CONNECTIONS:
            self._send_error(ApiError(503, f"too many connections, at most {MAX_CONNECTIONS}: try again later"))
        else:
            self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers of a closed connection."""
        self._cancel_header_timer()
        self._cancel_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._start_header_timer()

    def pause_writing(self) -> None:
        """Pause writing, and close the connection if the client reads nothing for some time."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Resume writing."""
        self._cancel_write_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP."""
        self._send_error(
            ApiError(400, f"{msg.rstrip('.')}: expected HTTP with headers of at most {MAX_HEADER_BYTES:,} bytes")
        )

    def _start_header_timer(self) -> None:
        """Limit the time until the headers are complete, or until the rest of an answered request has arrived."""
        if self._is_answering():
            self._cancel_header_timer()
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(HEADER_SECONDS, self._on_header_timeout)

    def _cancel_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _should_upgrade(self) -> bool:
        """Never switch to another protocol, such as WebSocket."""
        return False

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _on_header_timeout(self) -> None:
        if self.cycle is None or self.conn.trailing_data[0]:
            self._send_error(ApiError(408, f"the request did not arrive within {HEADER_SECONDS} seconds"))
        else:  # no request is pending
            self.transport.close()

    def _send_error(self, error: ApiError) -> None:
        """Send an error, unless a response has started already, and close the connection."""
        self._cancel_header_timer()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = error.response()
            response.headers.update(SECURITY_HEADERS)
            headers = [*response.raw_headers, (b"connection", b"close")]
            for event in (
                h11.Response(status_code=error.status, headers=headers),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        if self.cycle is not None:
            self.cycle.disconnected = True  # so that it sends nothing more
            self.cycle.message_event.set()
        self.transport.close()
