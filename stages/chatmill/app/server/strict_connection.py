"""HTTP/1.1 parsing that refuses what two servers may read differently (RFC 9112, sections 2.2, 5.2, 6.3 and 11.2).

If a proxy and this server disagreed about where a request ends, the rest of its body would be answered as a request
that no one checked.
"""

import re

import h11

HEAD_END = re.compile(rb"\n\r?\n")
HEADER_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class StrictConnection(h11.Connection):
    """The server's side of a connection."""

    refusal = ""  # why the last request was refused

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next part of a request. Raises RemoteProtocolError if it is malformed or ambiguous."""
        try:
            self._check_head()
            return super().next_event()
        except h11.RemoteProtocolError as error:
            self.refusal = str(error)
            raise

    def _check_head(self) -> None:
        """Raise RemoteProtocolError if the headers of the next request have arrived and are ambiguous."""
        data = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        if (end := HEAD_END.search(data)) and (reason := ambiguity(data[: end.end()])):
            raise h11.RemoteProtocolError(reason)


def ambiguity(head: bytes) -> str | None:
    """What servers may read differently in a request's line and headers, up to the empty line; None if nothing."""
    request_line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if re.search(rb"[\r\n]", b"".join([request_line, *lines])):
        return "a line ends without CR LF"
    fields = [line.partition(b":") for line in lines]
    if not all(HEADER_NAME.fullmatch(name) for name, _, _ in fields):
        return "a header is continued on another line, or its name is malformed"
    lengths = [
        (name.lower(), value.strip(b" \t"))
        for name, _, value in fields
        if name.lower() in (b"content-length", b"transfer-encoding")
    ]
    if len(lengths) > 1:
        return "more than one Content-Length or Transfer-Encoding"
    for name, value in lengths:
        if name == b"content-length" and not value.isdigit():
            return "Content-Length is not a number"
        if name == b"transfer-encoding" and request_line.endswith(b"HTTP/1.0"):
            return "Transfer-Encoding in HTTP/1.0"
    return None  # h11 refuses any other coding than `chunked`
