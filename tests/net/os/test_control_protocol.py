"""The control pipe over asyncio's buffered protocol: what is read arrives, however much it is."""

from p2pswarm.net.os.control_protocol import READ_BYTES, READ_BYTES_MAX, ControlProtocol


class Reader:
    """A user that keeps what comes."""

    def __init__(self):
        self.came = []

    def received(self, data: bytes):
        self.came.append(data)


def test_a_read_that_fills_the_buffer_makes_it_grow_for_good():
    reader = Reader()
    protocol = ControlProtocol(reader, "here")
    sizes = []

    for nbytes in (100, READ_BYTES, READ_BYTES_MAX, 100):
        buffer = protocol.get_buffer(-1)
        sizes.append(len(buffer))
        buffer[:nbytes] = bytes([len(sizes)]) * nbytes
        protocol.buffer_updated(nbytes)

    assert sizes == [READ_BYTES, READ_BYTES, READ_BYTES_MAX, READ_BYTES_MAX]
    assert reader.came[2] == b"\3" * READ_BYTES_MAX
    assert reader.came[3] == b"\4" * 100
