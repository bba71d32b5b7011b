"""Memory for replies: equal shares for all links, a bound for the sum, nothing lost at the end."""

import pytest

from p2pswarm.net.link.reply_budget import (
    LINK_BYTES_FREE,
    LINK_BYTES_MAX,
    SUM_BYTES_MAX,
    LinkReplyBudget,
    ReplyBudget,
)

REPLY = 42 * 1024


class Holding:
    """A link's part of the memory, and what it holds."""

    def __init__(self, everything: ReplyBudget | None = None) -> None:
        self._replies = LinkReplyBudget(everything)
        self.held_bytes = 0

    @property
    def crowded(self) -> bool:
        return self._replies.crowded(self.held_bytes)

    @property
    def unbearable(self) -> bool:
        return self._replies.unbearable(self.held_bytes)

    def reply(self, reply_bytes: int) -> bool:
        """Add a reply if that is allowed."""
        allowed = self._replies.takes(self.held_bytes, reply_bytes)
        self.held_bytes += reply_bytes * allowed
        return allowed

    def tell(self) -> None:
        self._replies.update(self.held_bytes)

    def leave(self) -> None:
        self._replies.leave()


def greedy(links: list[Holding]) -> None:
    """Each adds replies as long as it may, in turn."""
    added = True
    while added:
        added = False
        for link in links:
            added |= not link.crowded and link.reply(REPLY)


def test_a_link_alone_holds_what_a_link_may():
    link = Holding()

    greedy([link])

    assert LINK_BYTES_MAX < link.held_bytes <= LINK_BYTES_MAX + REPLY


@pytest.mark.parametrize("count", [20, 1024])
def test_the_sum_is_bounded_and_an_honest_link_has_its_share(count: int):
    everything = ReplyBudget()
    links = [Holding(everything) for _ in range(count)]
    honest = Holding(everything)
    greedy(links)

    honest.held_bytes = LINK_BYTES_FREE
    assert not honest.crowded
    assert sum(link.held_bytes for link in links) <= SUM_BYTES_MAX + count * (
        LINK_BYTES_FREE + REPLY
    )
    honest.held_bytes = max(LINK_BYTES_FREE, SUM_BYTES_MAX // (8 * count))
    assert not honest.crowded


@pytest.mark.parametrize("reply_bytes", [1, 17, 48, 60])
def test_the_sum_is_bounded_whatever_the_size_of_replies(reply_bytes: int):
    everything = ReplyBudget()
    links = [Holding(everything) for _ in range(1024)]
    for _ in range(64):
        for link in links:
            if not link.crowded:
                link.reply(reply_bytes * 1024)

    held = sum(link.held_bytes for link in links)
    assert held <= SUM_BYTES_MAX + len(links) * LINK_BYTES_FREE
    assert held >= min(SUM_BYTES_MAX, len(links) * LINK_BYTES_FREE) - REPLY


def test_a_short_reply_is_sent_and_a_long_one_is_not_while_the_sum_is_full():
    everything = ReplyBudget()
    greedy_links = [Holding(everything) for _ in range(1024)]
    while any(link.reply(REPLY) for link in greedy_links):
        pass
    honest = Holding(everything)

    assert honest.reply(LINK_BYTES_FREE)
    assert not honest.reply(REPLY)
    for link in greedy_links[:20]:
        link.held_bytes = 0
        link.reply(1)  # at its next reply it says what it holds
    assert honest.reply(REPLY)


def test_what_was_read_is_free_again():
    everything = ReplyBudget()
    links = [Holding(everything) for _ in range(20)]
    greedy(links)
    for link in links:
        link.held_bytes = 0
        link.tell()

    assert everything.held_bytes == 0


def test_a_link_that_ends_leaves_nothing_behind():
    everything = ReplyBudget()
    link = Holding(everything)
    link.held_bytes = 1 << 20
    link.tell()

    link.leave()
    link.held_bytes = 0
    link.tell()

    assert everything.held_bytes == 0


def test_a_link_ends_only_when_the_sum_is_twice_what_it_may_be_and_it_is_a_part_of_it():
    everything = ReplyBudget()
    guilty, honest = Holding(everything), Holding(everything)
    guilty.held_bytes = 2 * SUM_BYTES_MAX
    honest.held_bytes = LINK_BYTES_FREE
    assert not guilty.unbearable

    guilty.held_bytes += 1

    assert guilty.unbearable
    assert not honest.unbearable
