"""Uvicorn's HTTP protocol with limits: malformed or slow requests and excess connections get an error response."""

import asyncio
from collections.abc import Collection
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from chatmill.app.server.api_errors import ApiError
from chatmill.app.server.security import (
    MAX_HEADER_BYTES,
    SECURITY_HEADERS,
    canonical_address,
    client_network,
    is_loopback,
)
from chatmill.app.server.strict_connection import StrictConnection

MAX_CONNECTIONS = 512
MAX_CONNECTIONS_OF_ADDRESS = 128  # unless it is this machine's, or a proxy's
HEADER_SECONDS = 10  # in which the headers of a request must arrive
WRITE_TIMEOUT_SECONDS = 30  # in which a client must read what was sent


class LimitedProtocol(H11Protocol):
    """One connection."""

    def __init__(self, *arguments: Any, proxies: Collection[str] = (), **options: Any) -> None:
        """`proxies` are the addresses whose connections are those of many clients."""
        super().__init__(*arguments, **options)
        self.conn: StrictConnection = StrictConnection(h11.SERVER, MAX_HEADER_BYTES)
        self._proxies, self._network = {canonical_address(proxy) for proxy in proxies}, ""
        self._waiting_since = self.loop.time()  # for a request
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Accept a connection; if too many are open, close the one that has waited longest for its client."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # pause writing as soon as the client reads too slowly
        host = canonical_address(self.client[0]) if self.client else ""
        self._network = "" if is_loopback(host) or host in self._proxies else client_network(host)
        if self._make_room():
            self._start_header_timer()
        else:
            self._send_error(too_many_connections())

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

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of an answered one."""
        self._waiting_since = self.loop.time()
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
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
        expected = f"expected HTTP with headers of at most {MAX_HEADER_BYTES:,} bytes"
        self._send_error(ApiError(400, f"{msg.rstrip('.')}: {self.conn.refusal:.200}: {expected}"))

    def _make_room(self) -> bool:
        """Close a connection if there are too many, of all or of this client; return False if none can be closed."""
        limited = [other for other in self.connections if isinstance(other, LimitedProtocol)]
        connections = [other for other in limited if not other.transport.is_closing()]
        same = [other for other in connections if other._network == self._network] if self._network else []
        if len(same) > MAX_CONNECTIONS_OF_ADDRESS:
            connections = same
        elif len(connections) <= MAX_CONNECTIONS:
            return True
        waiting = [other for other in connections if other is not self and other._waits_for_client()]
        if waiting:
            min(waiting, key=lambda other: other._waiting_since)._evict()
        return bool(waiting)

    def _waits_for_client(self) -> bool:
        """Whether the client has not sent a complete request, or does not read the response."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY) or self._write_timer is not None

    def _evict(self) -> None:
        """Close the connection in favour of another one."""
        self._close_with(too_many_connections())
        if self.transport.get_write_buffer_size():
            self.transport.abort()

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
        self._close_with(ApiError(408, f"the request did not arrive within {HEADER_SECONDS} seconds"))

    def _close_with(self, error: ApiError) -> None:
        """Close the connection, with an error unless it is idle after a response."""
        if self.cycle is not None and self.conn.our_state is h11.IDLE and not self.conn.trailing_data[0]:
            self.transport.close()
        else:
            self._send_error(error)

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


def too_many_connections() -> ApiError:
    """The error for a connection that is closed because others are open."""
    return ApiError(
        503,
        f"too many connections, at most {MAX_CONNECTIONS}, and {MAX_CONNECTIONS_OF_ADDRESS} of one address: "
        "try again later",
    )
