"""Reports and commands: in order, none lost, of any size, and no process waits inside a queue."""

import threading
import time

import numpy as np
import pytest

from appo.algorithms.messages import CheckpointSaved, EpisodeFinished, EpisodesFinished, Failed, TrainingReport
from appo.algorithms.workers.channels import Gate, Inbox, Outbox
from appo.algorithms.workers.queue_memory import make_queues


def channel(size=2000, **limits):
    [fifo], sent = make_queues(size), np.zeros(1, np.int64)
    flags = np.zeros(2, np.uint8)
    sender, receiver = Gate(flags[:1], flags[1:]), Gate(flags[1:], flags[:1])
    return Outbox(fifo, sent, sender, **limits), Inbox(fifo, sent, receiver)


def exchange(outbox, inbox, rounds=1000):
    """Let both ends work in turns until nothing waits; what arrived."""
    received = list(inbox.receive())
    for _ in range(rounds):
        is_empty = outbox.flush()
        received += inbox.receive()
        if is_empty:
            return received
    raise AssertionError(f"something still waits after {rounds} rounds")


def numbered(number, size=50):
    """A report that may be dropped where too many wait."""
    return TrainingReport(0, number, {"x" * size: 1.0})


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
        max_size_bytes = 1000

        def get_many_nowait(self):
            raise AssertionError("looked into an empty queue")

    assert not Inbox(Untouchable(), np.zeros(1, np.int64), Gate(*np.zeros((2, 1), np.uint8))).receive()


def test_what_finds_no_room_is_kept_and_sent_later_in_order():
    outbox, inbox = channel(size=1000)
    for number in range(30):
        outbox.send((number, "x" * 50))
    assert not outbox.flush() and outbox.is_waiting
    received = [number for number, _ in inbox.receive()]
    assert 0 < len(received) < 30
    received += [number for number, _ in exchange(outbox, inbox)]
    assert not outbox.is_waiting and outbox.dropped == 0
    assert received == list(range(30))


def test_more_than_the_queue_ever_holds_passes_in_pieces():
    outbox, inbox = channel(size=1000)
    outbox.send(*range(1000))
    assert exchange(outbox, inbox) == list(range(1000))


def test_everything_that_has_arrived_is_received_at_once():
    outbox, inbox = channel(size=1_000_000)
    for number in range(3000):
        outbox.send((number, "x" * 50))
    assert [number for number, _ in inbox.receive()] == list(range(3000))


@pytest.mark.parametrize("size", [10, 900, 1000, 100_000, 3_000_000])
def test_messages_of_any_size_pass_through_a_small_queue_unchanged_and_in_order(size):
    outbox, inbox = channel(size=10_000)
    sent = ["before", ("z" * size, size), "between", list(range(size // 10)), "after"]
    outbox.send(*sent)
    assert exchange(outbox, inbox) == sent and outbox.dropped == 0


def test_half_a_message_is_no_message():
    outbox, inbox = channel(size=1000)
    outbox.send("a", "x" * 5000)
    assert list(inbox.receive()) == ["a"] and inbox.is_busy
    assert list(inbox.receive()) == []  # nothing more has come
    assert exchange(outbox, inbox) == ["x" * 5000] and not inbox.is_busy


def test_a_receiver_may_wait_a_while_for_the_rest_of_a_message():
    outbox, inbox = channel(size=1000)
    outbox.send("x" * 5000)
    assert list(inbox.receive(finish_within_s=0.02)) == []  # the rest does not come by itself
    sender = threading.Thread(target=outbox.flush_within, args=(30.0,))
    sender.start()
    assert list(inbox.receive(finish_within_s=30.0)) == ["x" * 5000]
    sender.join()
    began = time.monotonic()
    assert list(inbox.receive(finish_within_s=30.0)) == []
    assert time.monotonic() - began < 15.0  # there was nothing to wait for


def test_a_receiver_that_finds_much_comes_back_soon():
    outbox, inbox = channel(size=1000)
    outbox.send("a")
    inbox.receive()
    assert not inbox.is_busy
    outbox.send(*["x" * 100] * 20)
    inbox.receive()
    assert inbox.is_busy and outbox.is_waiting


@pytest.mark.parametrize("limits", [{"keep": 5}, {"keep_bytes": 600}])
def test_beyond_what_is_kept_the_oldest_expendable_ones_are_dropped_and_counted(limits):
    outbox, inbox = channel(size=1000, **limits)
    for number in range(100):
        outbox.send(numbered(number))
    early = [report.train_step for report in inbox.receive()]
    late = [report.train_step for report in exchange(outbox, inbox)]
    assert early == list(range(len(early)))
    assert 0 < len(late) <= 5 and late == list(range(100 - len(late), 100))
    assert outbox.dropped == 100 - len(early) - len(late) > 0


def test_a_flood_of_episodes_drops_nothing_that_the_run_depends_on():
    outbox, inbox = channel(size=1000, keep_bytes=2000)
    vital = [CheckpointSaved(0, "latest", "x" * 300, 1), Failed("actor-00", "step", "y" * 3000, True)]
    flood = [EpisodesFinished([EpisodeFinished(0, 1.0, 1.0, number, {})]) for number in range(300)]
    outbox.send(*flood[:100], vital[0], *flood[100:200], vital[1], *flood[200:])
    received = exchange(outbox, inbox)
    assert [report for report in received if not isinstance(report, EpisodesFinished)] == vital
    assert outbox.dropped == len(flood) + len(vital) - len(received) > 100


def test_a_message_that_is_half_sent_is_not_dropped():
    outbox, inbox = channel(size=1000, keep=2)
    outbox.send(numbered(0, size=5000))
    for number in range(1, 20):
        outbox.send(numbered(number))
    assert [report.train_step for report in exchange(outbox, inbox)] == [0, 19]


def test_last_words_go_ahead_of_what_waits_but_not_into_the_middle_of_a_message():
    outbox, inbox = channel(size=1000)
    outbox.send("x" * 5000, "later")
    outbox.send_ahead("last words")
    assert exchange(outbox, inbox) == ["x" * 5000, "last words", "later"]
    outbox.send(*["a" * 100] * 20)
    outbox.send_ahead("last words")
    received = exchange(outbox, inbox)
    assert received.index("last words") < 10 and len(received) == 21


def test_last_words_wait_for_room_for_a_while_and_no_longer():
    outbox, inbox = channel(size=300)
    outbox.send("x" * 200)
    outbox.send("y" * 200)
    began = time.monotonic()
    assert not outbox.flush_within(0.1)
    assert 0.1 <= time.monotonic() - began < 5.0
    assert exchange(outbox, inbox) == ["x" * 200, "y" * 200]


def test_neither_side_enters_while_the_other_is_inside():
    flags = np.zeros(2, np.uint8)
    one, other = Gate(flags[:1], flags[1:]), Gate(flags[1:], flags[:1])
    assert one.enter() and not other.enter()
    assert flags.tolist() == [1, 0]  # the one that was sent away has left no flag behind
    one.leave()
    assert other.enter() and not one.enter()


def test_what_cannot_be_sent_because_the_reader_is_inside_goes_later():
    [fifo], sent, flags = make_queues(2000), np.zeros(1, np.int64), np.zeros(2, np.uint8)
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
