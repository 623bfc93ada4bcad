"""Both ends of a stream against a plain model, and the check between them."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from placement.protocol.serving_frames import FrameInvalid, pack
from placement.protocol.stream_frames import (
    CONTROL_COST_BYTES,
    PIECE_BYTES,
    WINDOW_BYTES,
    CloseFrame,
    DataFrame,
    OpenFrame,
    WindowFrame,
    pack_frame,
    unpack_frame,
)
from placement.protocol.stream_refusal import refusal_of
from placement.protocol.stream_state import (
    CreditCheck,
    FrameQueue,
    StreamEnd,
    StreamViolation,
)

NAME = "a" * 32
SIDES = st.sampled_from((0, 1))
SIZES = st.one_of(st.integers(1, 40), st.integers(PIECE_BYTES - 2, PIECE_BYTES))


class TwoEnds(RuleBasedStateMachine):
    """Two ends, the bytes on their way as frames, and what a plain pipe would do."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = (StreamEnd(NAME), StreamEnd(NAME))
        self.ways: tuple[deque[bytes], deque[bytes]] = (deque(), deque())
        """Frames on their way to each end."""
        self.check = CreditCheck()
        """The portal's, between the end 0 (its own) and the end 1 (a node's)."""
        self.written: list[list[tuple[bool, bytes]]] = [[], []]
        self.read: list[list[tuple[bool, bytes]]] = [[], []]
        self.aborted = False
        self.count = 0
        for side in (0, 1):
            self.ends[side].grant()
            self._collect(side)

    def _collect(self, side: int) -> None:
        while self.ends[side].outgoing:
            frame = self.ends[side].outgoing.popleft()
            if side == 0:
                self.check.passed_to_node(frame)
            else:
                self.check.came_from_node(frame)
            self.ways[1 - side].append(pack_frame(frame))

    @rule(side=SIDES, size=SIZES, control=st.booleans())
    def write(self, side: int, size: int, control: bool) -> None:
        end = self.ends[side]
        size = min(size, 1024) if control else size
        self.count += 1
        body = (self.count.to_bytes(4, "big") * (size // 4 + 1))[:size]
        cost = DataFrame(NAME, control, body).cost_bytes
        if end.over or end.sent_all or cost > end.credit_bytes:
            with pytest.raises(ValueError, match=r"of|nothing"):
                end.write(body, control=control)
            return
        end.write(body, control=control)
        self.written[side].append((control, body))
        self._collect(side)

    @rule(side=SIDES, count=st.integers(1, 5))
    def deliver(self, side: int, count: int) -> None:
        for _ in range(min(count, len(self.ways[side]))):
            self.ends[side].receive(unpack_frame(self.ways[side].popleft()))

    @rule(side=SIDES)
    def take(self, side: int) -> None:
        piece = self.ends[side].take()
        if piece is not None:
            self.read[side].append((piece.control, piece.data))
        self._collect(side)

    @rule(side=SIDES)
    def finish(self, side: int) -> None:
        self.ends[side].finish()
        self._collect(side)

    @rule(side=SIDES)
    def abort(self, side: int) -> None:
        self.aborted = self.aborted or not self.ends[side].over
        self.ends[side].abort("access-over", "over")
        self._collect(side)

    @invariant()
    def the_window_is_never_exceeded(self) -> None:
        for side in (0, 1):
            arrived = sum(
                frame.cost_bytes
                for frame in map(unpack_frame, self.ways[side])
                if isinstance(frame, DataFrame)
            )
            waiting = sum(cost for _, _, cost in self.ends[side]._pieces)
            assert arrived + waiting <= WINDOW_BYTES
            assert 0 <= self.ends[side].credit_bytes <= WINDOW_BYTES

    def teardown(self) -> None:
        """Deliver and read everything, and end both directions."""
        for _ in range(4):
            for side in (0, 1):
                self.deliver(side, len(self.ways[side]))
                while self.ends[side].readable and self.ends[side]._pieces:
                    self.take(side)
                self.finish(side)
        for side in (0, 1):
            assert self.ends[side].over, "a close reaches both ends"
            sent = self.written[1 - side]
            if not self.aborted:
                assert _joined(self.read[side]) == _joined(sent), "once and in order"
            else:
                whole, part = _joined(sent), _joined(self.read[side])
                assert _flat(whole).startswith(_flat(part)), "a beginning, in order"


def _joined(pieces: list[tuple[bool, bytes]]) -> list[tuple[bool, bytes]]:
    """Join neighbouring pieces of data: their borders have no meaning."""
    found: list[tuple[bool, bytes]] = []
    for control, data in pieces:
        if found and not control and not found[-1][0]:
            found[-1] = (False, found[-1][1] + data)
        else:
            found.append((control, data))
    return found


def _flat(pieces: list[tuple[bool, bytes]]) -> bytes:
    return b"".join(bytes([control]) + data for control, data in pieces)


TestTwoEnds = TwoEnds.TestCase
TestTwoEnds.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def granted() -> StreamEnd:
    """Return an end that lets the other one send a whole window."""
    end = StreamEnd(NAME)
    end.grant()
    return end


def test_a_peer_that_breaks_the_protocol_is_found_out():
    def broken(end, *frames):
        with pytest.raises(StreamViolation):
            for frame in frames:
                end.receive(frame)

    piece = DataFrame(NAME, False, bytes(PIECE_BYTES))
    broken(StreamEnd(NAME), DataFrame(NAME, False, b"x"))
    broken(granted(), *[piece] * (WINDOW_BYTES // PIECE_BYTES + 1))
    broken(granted(), CloseFrame(NAME), DataFrame(NAME, False, b"x"))
    broken(granted(), CloseFrame(NAME), CloseFrame(NAME))
    broken(granted(), *[WindowFrame(NAME, WINDOW_BYTES)] * 2)
    broken(granted(), OpenFrame(NAME, "{}", ""))
    # Control messages are few, however short they are.
    most = WINDOW_BYTES // CONTROL_COST_BYTES
    broken(granted(), *[DataFrame(NAME, True, b"{}")] * (most + 1))
    small = StreamEnd(NAME, 1024)
    small.grant()
    assert small.outgoing.pop() == WindowFrame(NAME, 1024), "an end can give less"
    broken(small, DataFrame(NAME, False, bytes(1025)))


def test_single_bytes_take_no_more_memory_than_large_pieces():
    end = granted()
    for _ in range(WINDOW_BYTES):
        end.receive(DataFrame(NAME, False, b"x"))
    assert len(end._pieces) == 1
    piece = end.take()
    assert piece is not None and len(piece.data) == WINDOW_BYTES


def test_a_node_cannot_fill_the_broker():
    """It gives credit without reading, or sends without credit."""
    check = CreditCheck()
    check.came_from_node(WindowFrame(NAME, WINDOW_BYTES))
    with pytest.raises(StreamViolation):
        check.came_from_node(WindowFrame(NAME, 1))
    with pytest.raises(StreamViolation):
        CreditCheck().came_from_node(DataFrame(NAME, False, b"x"))
    with pytest.raises(StreamViolation):
        CreditCheck().came_from_node(OpenFrame(NAME, "{}", ""))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0",
        b"\xff\xff\xff\xff" + bytes(100),
        pack({"kind": "data", "stream": NAME}),
        pack({"kind": "data", "stream": NAME}, bytes(PIECE_BYTES + 1)),
        pack({"kind": "data", "stream": NAME, "control": True}, bytes(1025)),
        pack({"kind": "data", "stream": NAME, "body": "eHg="}, b"x"),
        pack({"kind": "data", "stream": "A" * 32}, b"x"),
        pack({"kind": "window", "stream": NAME, "credit": 0}),
        pack({"kind": "window", "stream": NAME, "credit": WINDOW_BYTES + 1}),
        pack({"kind": "window", "stream": NAME, "credit": -1}),
        pack({"kind": "window", "stream": NAME, "credit": 2**63}),
        pack({"kind": "window", "stream": NAME, "credit": 10**400}),
        pack({"kind": "window", "stream": NAME, "credit": 1.5}),
        pack({"kind": "window", "stream": NAME, "credit": True}),
        pack({"kind": "window", "stream": NAME, "credit": 1}, b"x"),
        pack({"kind": "close", "stream": NAME, "code": "Not Kebab"}),
        pack({"kind": "close", "stream": NAME, "detail": "\x1b[2J"}),
        pack({"kind": "close", "stream": NAME, "detail": "x" * 301}),
        pack({"kind": "shout", "stream": NAME}),
        pack({"stream": NAME}),
    ],
)
def test_an_invalid_frame_is_refused(data):
    with pytest.raises(FrameInvalid):
        unpack_frame(data)


def test_what_a_node_gives_as_a_reason_is_one_of_the_known_codes():
    assert refusal_of("no-service", "node1 offers no ssh.").code == "no-service"
    assert refusal_of("made-up", "x").code == "stream-broken"
    assert str(refusal_of("stream-lost", "")) == "The connection to the node was lost."
    assert refusal_of("too-large", "").code == "stream-broken", "without a sentence"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2000)), max_size=40))
def test_a_queue_keeps_the_order_of_each_stream_and_loses_nothing(actions):
    """An action of size 0 takes a frame, another puts one."""
    queue = FrameQueue()
    put: list[DataFrame] = []
    taken: list[DataFrame] = []
    for stream, size in actions:
        if size:
            body = b"%d" % len(put) + bytes(size)
            put.append(DataFrame(str(stream), control=size % 7 == 0, body=body))
            queue.put(put[-1])
        elif frame := queue.take():
            taken.append(frame)
    while frame := queue.take():
        taken.append(frame)
    for stream in "0123":
        theirs = [
            _joined([(one.control, one.body) for one in all_ if one.stream == stream])
            for all_ in (put, taken)
        ]
        assert theirs[0] == theirs[1]


def test_a_key_waits_for_no_window_and_copies_get_equal_shares():
    queue, piece = FrameQueue(), bytes(PIECE_BYTES)
    copies = [str(number) for number in range(8)]
    for copy in copies:
        for _ in range(4):
            queue.put(DataFrame(copy, body=piece))
    assert queue.take() == DataFrame("0", body=piece)
    for _ in range(3):
        queue.put(DataFrame("key", body=b"x"))
        assert queue.take() == DataFrame("key", body=b"x")
    rest = [queue.take().stream for _ in range(31)]
    assert [rest[start : start + 8] for start in (7, 15)] == [copies] * 2
    assert queue.take() is None


def test_small_data_that_wait_become_pieces_and_get_no_more_than_a_share():
    queue = FrameQueue()
    for _ in range(WINDOW_BYTES // 64):
        queue.put(DataFrame("flood", body=bytes(64)))
    for _ in range(2):
        queue.put(DataFrame("copy", body=bytes(PIECE_BYTES)))
    queue.put(CloseFrame("flood"))
    taken = iter(queue.take, None)
    sent = [(one.stream, len(getattr(one, "body", b""))) for one in taken]
    rest_bytes = WINDOW_BYTES - 64 - 2 * PIECE_BYTES
    assert sent == [
        ("flood", 64),
        ("copy", PIECE_BYTES),
        ("flood", PIECE_BYTES),
        ("copy", PIECE_BYTES),
        ("flood", PIECE_BYTES),
        ("flood", rest_bytes),
        ("flood", 0),
    ]


def test_many_control_messages_are_no_way_to_more_than_a_share():
    queue = FrameQueue()
    for _ in range(4000):
        queue.put(DataFrame("flood", control=True, body=b"x"))
    for _ in range(2):
        queue.put(DataFrame("copy", body=bytes(PIECE_BYTES)))
    first = [queue.take().stream for _ in range(4002)]
    assert 900 < first.index("copy") < 1000
