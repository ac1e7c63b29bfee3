"""What a client may send before any of our code sees it."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 2**10


class BoundedHeads(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, which of itself collects a request line and headers without end, with an end.

    Counts the bytes that come until a request's head is complete; the rest of a packet counts with its beginning.
    """

    _in_head = True
    _num_head_bytes = 0

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._num_head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._num_head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The request line and headers are longer than {MAX_HEAD_BYTES} bytes.")

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._num_head_bytes = 0
        super().on_message_complete()
