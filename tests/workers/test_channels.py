"""Reports and commands: in order, none lost as long as there is room, nobody ever waits inside a queue."""

import time

import faster_fifo
import numpy as np
import pytest

from algorithms.workers.channels import Gate, Inbox, Outbox


def channel(size=2000, keep=10_000):
    fifo, sent = faster_fifo.Queue(max_size_bytes=size), np.zeros(1, np.int64)
    flags = np.zeros(2, np.uint8)
    sender, receiver = Gate(flags[:1], flags[1:]), Gate(flags[1:], flags[:1])
    return Outbox(fifo, sent, sender, keep), Inbox(fifo, sent, receiver)


def test_messages_arrive_in_order_and_once():
    outbox, inbox = channel()
    outbox.send("a", ("b", 1))
    outbox.send({"c": 2})
    assert list(inbox.receive()) == ["a", ("b", 1), {"c": 2}]
    assert list(inbox.receive()) == []
    outbox.send("d")
    assert list(inbox.receive()) == ["d"]


def test_an_empty_channel_is_not_touched():
    class Untouchable:
        def get_many_nowait(self):
            raise AssertionError("looked into an empty queue")

    assert not Inbox(Untouchable(), np.zeros(1, np.int64), Gate(*np.zeros((2, 1), np.uint8))).receive()


def test_what_finds_no_room_is_kept_and_sent_later_in_order():
    outbox, inbox = channel(size=1000)
    for number in range(30):
        outbox.send((number, "x" * 50))
    assert not outbox.flush()
    received = [number for number, _ in inbox.receive()]
    assert 0 < len(received) < 30
    for _ in range(30):
        is_empty = outbox.flush()
        received += [number for number, _ in inbox.receive()]
    assert is_empty and outbox.dropped == 0
    assert received == list(range(30))


def test_more_than_the_queue_ever_holds_passes_in_pieces():
    outbox, inbox = channel(size=1000)
    outbox.send(*range(1000))
    received = list(inbox.receive())
    for _ in range(1000):
        if outbox.flush():
            break
        received += inbox.receive()
    received += inbox.receive()
    assert received == list(range(1000))


def test_everything_that_has_arrived_is_received_at_once():
    outbox, inbox = channel(size=1_000_000)
    for number in range(3000):
        outbox.send((number, "x" * 50))
    assert [number for number, _ in inbox.receive()] == list(range(3000))


def test_beyond_what_is_kept_the_oldest_are_dropped_and_counted():
    outbox, inbox = channel(size=1000, keep=5)
    for number in range(100):
        outbox.send((number, "x" * 50))
    early = [number for number, _ in inbox.receive()]
    assert outbox.flush()
    late = [number for number, _ in inbox.receive()]
    assert early == list(range(len(early)))
    assert late == list(range(95, 100))
    assert outbox.dropped == 100 - len(early) - len(late) > 0


def test_last_words_wait_for_room_for_a_while_and_no_longer():
    outbox, inbox = channel(size=300)
    outbox.send("x" * 200)
    outbox.send("y" * 200)
    began = time.monotonic()
    assert not outbox.flush_within(0.1)
    assert 0.1 <= time.monotonic() - began < 5.0
    assert list(inbox.receive()) == ["x" * 200]
    assert outbox.flush_within(0.1)
    assert list(inbox.receive()) == ["y" * 200]


@pytest.mark.parametrize("size", [10, 100_000])
def test_messages_of_any_size_pass(size):
    outbox, inbox = channel(size=1_000_000)
    outbox.send(*["z" * size] * 5)
    assert list(inbox.receive()) == ["z" * size] * 5


def test_nobody_enters_while_the_other_side_is_inside():
    flags = np.zeros(2, np.uint8)
    one, other = Gate(flags[:1], flags[1:]), Gate(flags[1:], flags[:1])
    assert one.enter() and not other.enter()
    assert flags.tolist() == [1, 0]  # the one that was sent away has left no flag behind
    one.leave()
    assert other.enter() and not one.enter()


def test_what_cannot_be_sent_because_the_reader_is_inside_goes_later():
    fifo, sent, flags = faster_fifo.Queue(max_size_bytes=2000), np.zeros(1, np.int64), np.zeros(2, np.uint8)
    outbox = Outbox(fifo, sent, Gate(flags[:1], flags[1:]))
    inbox = Inbox(fifo, sent, Gate(flags[1:], flags[:1]))
    flags[1] = 1
    outbox.send("a")
    assert sent[0] == 0 and not outbox.flush()
    flags[1] = 0
    assert outbox.flush() and list(inbox.receive()) == ["a"]
    assert not flags.any()


def test_the_queue_of_a_sender_that_died_inside_is_left_alone():
    outbox, inbox = channel()
    outbox.send("a")
    outbox._gate._mine[0] = 1  # as its process leaves it
    assert list(inbox.receive()) == []


def test_a_message_that_no_queue_could_ever_hold_is_dropped_and_told_and_holds_nobody_up(caplog):
    outbox, inbox = channel(size=1000)
    outbox.send("a", "x" * 5000, "b")
    received = list(inbox.receive())
    outbox.flush()
    received += inbox.receive()
    assert received == ["a", "b"] and outbox.dropped == 1
    assert "a str is larger than a queue and cannot be sent" in caplog.text
