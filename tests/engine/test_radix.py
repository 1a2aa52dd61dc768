"""The radix tree and the prefix cache against a naive model: a dictionary of prefixes."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from redraft.engine.pages import PagePool
from redraft.engine.prefix_cache import PrefixCache
from redraft.engine.radix import RadixTree, RootKey
from redraft.errors import EngineError

P = 2
ROOTS = (RootKey(0, 32), RootKey(1, 32))
Prefix = tuple[int, tuple[int, ...]]  # root, tokens of whole pages


@dataclass(eq=False)
class Holder:
    """A request: its tokens (of which the first `shared` pages are in the tree) and the pages it holds for them."""

    root: int
    tokens: tuple[int, ...]
    pages: list[int]
    shared: int = 0

    def prefix(self, pages: int) -> Prefix:
        return self.root, self.tokens[: pages * P]


def before(prefix: Prefix) -> Prefix:
    return prefix[0], prefix[1][:-P]


@dataclass
class World:
    """The cache under test beside the model, which knows every shared prefix, its page and when it was last let go,
    and what every page in use was filled with. Each operation compares the two."""

    count: int
    holders: list[Holder] = field(default_factory=list)
    shared: dict[Prefix, int] = field(default_factory=dict)
    let_go: dict[Prefix, int] = field(default_factory=dict)
    content: dict[int, Prefix] = field(default_factory=dict)
    clock: int = 0
    evicted: int = 0
    refused: int = 0
    hits: int = 0

    def __post_init__(self) -> None:
        self.cache = PrefixCache(PagePool(self.count), P)

    # What the model expects.

    def users(self, prefix: Prefix) -> int:
        depth = len(prefix[1]) // P
        return sum(holder.shared >= depth and holder.prefix(depth) == prefix for holder in self.holders)

    def unused(self) -> list[Prefix]:
        used = {holder.prefix(depth + 1) for holder in self.holders for depth in range(holder.shared)}
        return [prefix for prefix in self.shared if prefix not in used]

    def used_pages(self) -> set[int]:
        return {page for holder in self.holders for page in holder.pages}

    def expect_evictions(self, number: int) -> None:
        """Leaves without a user go, the one that was let go longest ago first."""
        for _ in range(number):
            parents = {before(prefix) for prefix in self.shared}
            leaves = [prefix for prefix in self.unused() if prefix not in parents]
            oldest = min(leaves, key=self.let_go.__getitem__)
            del self.content[self.shared.pop(oldest)], self.let_go[oldest]
            self.evicted += 1

    # Operations.

    def submit(self, root: int, tokens: tuple[int, ...]) -> None:
        """A prompt of whole pages: match, then pages for the rest, or nothing at all."""
        known = 0
        while known < len(tokens) // P and (root, tokens[: (known + 1) * P]) in self.shared:
            known += 1
        pages = self.cache.match(ROOTS[root], tokens)
        assert pages == [self.shared[root, tokens[: (i + 1) * P]] for i in range(known)]
        assert [self.content[page] for page in pages] == [(root, tokens[: (i + 1) * P]) for i in range(known)]
        self.hits += known
        self.holders.append(Holder(root, tokens[: known * P], pages, known))
        if not self.grow(-1, tokens[known * P :]):
            self.abort(-1)

    def grow(self, index: int, tokens: tuple[int, ...]) -> bool:
        """Pages for more tokens of a request; False when the pool can't give them."""
        holder, number = self.holders[index], len(tokens) // P
        free = self.count - len(self.used_pages() | set(self.shared.values()))
        possible = number <= free + len(self.unused())
        pages = self.cache.allocate(number)
        assert (pages is not None) == possible
        if pages is None:
            self.refused += 1
            return False
        self.expect_evictions(max(0, number - free))
        assert not set(pages) & self.content.keys() and len(set(pages)) == number
        self.cache.pool.require_writable(pages)
        holder.tokens += tokens
        for page in pages:
            holder.pages.append(page)
            self.content[page] = holder.prefix(len(holder.pages))
        return True

    def freeze(self, index: int, pages: int) -> None:
        """Shares a request's first pages."""
        holder = self.holders[index]
        given = holder.pages[:pages]
        got = self.cache.insert(ROOTS[holder.root], holder.tokens[: pages * P], given)
        for i, page in enumerate(given):
            prefix = holder.prefix(i + 1)
            if prefix not in self.shared:
                self.shared[prefix] = page
            elif page != self.shared[prefix]:
                del self.content[page]
        assert got == [self.shared[holder.prefix(i + 1)] for i in range(pages)]
        holder.pages[:pages] = got
        holder.shared = max(holder.shared, pages)

    def abort(self, index: int, keep: int = 0) -> None:
        """A request lets its pages go, all but the first `keep`; with none left it is gone."""
        holder = self.holders[index]
        released = range(keep, len(holder.pages))
        self.clock += 1
        self.cache.release(holder.pages[keep:])
        pages, old = holder.pages, holder.shared
        holder.pages, holder.shared = pages[:keep], min(old, keep)
        for depth in released:
            if depth >= old:
                del self.content[pages[depth]]
            elif not self.users(holder.prefix(depth + 1)):
                self.let_go[holder.prefix(depth + 1)] = self.clock
        holder.tokens = holder.tokens[: keep * P]
        if not keep:
            self.holders.remove(holder)

    def finish(self, index: int, frozen: int) -> None:
        self.freeze(index, frozen)
        self.abort(index)

    def evict(self, number: int) -> None:
        possible = min(number, len(self.unused()))
        assert self.cache.evict(number) == possible
        self.expect_evictions(possible)

    # What holds after each.

    def check(self) -> None:
        self.cache.check([holder.pages for holder in self.holders])
        statistics = self.cache.statistics()
        unused = len(self.unused())
        everywhere = self.used_pages() | set(self.shared.values())
        assert everywhere == self.content.keys()
        assert (statistics.cached, statistics.shared) == (unused, len(self.shared))
        assert statistics.free == self.count - len(everywhere) and statistics.evicted == self.evicted
        assert statistics.matched == self.hits and self.cache.available == statistics.free + unused
        assert sorted(self.cache.tree.pages()) == sorted(self.shared.values())
        for holder in self.holders:
            own = holder.pages[holder.shared :]
            self.cache.pool.require_writable(own)
            for page in holder.pages[: holder.shared]:
                with pytest.raises(EngineError):
                    self.cache.pool.require_writable([page])

    def end(self) -> None:
        """Everyone gone and everything evicted: all pages are free and nobody holds any."""
        while self.holders:
            self.abort(-1)
        self.cache.check([])
        self.evict(self.count)
        self.cache.check([])
        assert self.cache.pool.free == self.count and len(self.cache.tree) == 0
        assert all(self.cache.pool.holders(page) == 0 for page in range(self.count))
        assert self.cache.tree._roots == {}


tokens_of = st.lists(st.integers(0, 2), max_size=5).map(lambda pages: tuple(t for page in pages for t in (7, page)))


class Machine(RuleBasedStateMachine):
    @initialize(count=st.integers(1, 12))
    def start(self, count: int) -> None:
        self.world = World(count)

    def pick(self, data: st.DataObject) -> int | None:
        holders = len(self.world.holders)
        return data.draw(st.integers(0, holders - 1)) if holders else None

    @rule(root=st.integers(0, 1), tokens=tokens_of)
    def submit(self, root: int, tokens: tuple[int, ...]) -> None:
        self.world.submit(root, tokens)

    @rule(data=st.data(), tokens=tokens_of)
    def grow(self, data: st.DataObject, tokens: tuple[int, ...]) -> None:
        if (index := self.pick(data)) is not None:
            self.world.grow(index, tokens)

    @rule(data=st.data(), gone=st.booleans())
    def freeze(self, data: st.DataObject, gone: bool) -> None:
        if (index := self.pick(data)) is not None:
            pages = data.draw(st.integers(0, len(self.world.holders[index].pages)))
            (self.world.finish if gone else self.world.freeze)(index, pages)

    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        if (index := self.pick(data)) is not None:
            self.world.abort(index, data.draw(st.integers(0, len(self.world.holders[index].pages))))

    @rule(number=st.integers(0, 4))
    def evict(self, number: int) -> None:
        self.world.evict(number)

    @invariant()
    def balanced(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.end()


Machine.TestCase.settings = settings(stateful_step_count=30)
TestMachine = Machine.TestCase


def random_run(operations: int, seed: int, checked_every: int = 1, count: int = 24) -> World:
    """Random requests over few prefixes, so that they meet; at most as many as keep the pool short."""
    draw = random.Random(seed)
    world = World(count)

    def text(most: int) -> tuple[int, ...]:
        return tuple(t for _ in range(draw.randint(0, most)) for t in (7, draw.randint(0, 2)))

    for operation in range(operations):
        choice = draw.random()
        if not world.holders or (choice < 0.3 and len(world.holders) < 8):
            world.submit(draw.randint(0, 1), text(6))
        elif choice < 0.5:
            world.grow(draw.randrange(len(world.holders)), text(2))
        elif choice < 0.95:
            index = draw.randrange(len(world.holders))
            pages = draw.randint(0, len(world.holders[index].pages))
            draw.choice((world.freeze, world.finish, world.abort))(index, pages)
        else:
            world.evict(draw.randint(0, 3))
        if operation % checked_every == 0:
            world.check()
    return world


def test_random_operations() -> None:
    world = random_run(1000, seed=0)
    assert world.hits > 100 and world.evicted > 100 and world.refused > 10, "the run must meet what it tests"
    world.end()


@pytest.mark.slow
def test_a_hundred_thousand_operations_leak_nothing() -> None:
    world = random_run(100_000, seed=2, checked_every=10)
    assert world.hits > 10_000 and world.evicted > 10_000 and world.refused > 1000
    world.end()


def small(count: int = 8) -> PrefixCache:
    return PrefixCache(PagePool(count), P)


def add(cache: PrefixCache, tokens: Sequence[int], root: RootKey = ROOTS[0]) -> list[int]:
    """A request that shares all of `tokens`, still held."""
    pages = cache.match(root, tokens)
    fresh = cache.allocate(len(tokens) // P - len(pages))
    assert fresh is not None
    return cache.insert(root, tokens, pages + fresh)


def test_a_match_ends_at_the_last_whole_page_that_is_the_same() -> None:
    cache = small()
    pages = add(cache, [1, 2, 3, 4, 5, 6])
    for tokens, shared in [
        ([1, 2, 3, 4, 5, 6, 7], 3),
        ([1, 2, 3, 4, 5], 2),
        ([1, 2, 3, 9, 5, 6], 1),
        ([1], 0),
        ([], 0),
    ]:
        assert cache.match(ROOTS[0], tokens) == pages[:shared]
        assert cache.match(ROOTS[0], np.array(tokens, dtype=np.int64)) == pages[:shared]


@pytest.mark.parametrize(
    "other", [RootKey(1, 32), RootKey("0", 32), RootKey(0, 64), RootKey(0, 32, 8), RootKey(0, 32, None, "int8")]
)
def test_requests_that_differ_in_the_root_share_nothing(other: RootKey) -> None:
    cache = small()
    pages = add(cache, [1, 2])
    assert cache.match(other, [1, 2]) == []
    assert set(add(cache, [1, 2], other)).isdisjoint(pages)
    cache.check()


def test_a_second_copy_goes_back_and_the_first_takes_its_place() -> None:
    cache = small()
    first, second = cache.allocate(2), cache.allocate(3)
    assert first is not None and second is not None
    assert cache.insert(ROOTS[0], [1, 2, 3, 4], first) == first
    assert cache.insert(ROOTS[0], [1, 2, 3, 4, 5, 6], second) == [*first, second[2]]
    cache.check([first, [*first, second[2]]])
    assert cache.statistics().free == 5


def test_the_pages_let_go_longest_ago_leave_first_and_from_the_end() -> None:
    cache = small()
    texts = [[1, 2, 3, 4], [1, 2, 5, 6], [7, 8]]
    held = [add(cache, text) for text in texts]
    for pages in held:
        cache.release(pages)
    cache.release(cache.match(ROOTS[0], texts[0]))  # used again: now the youngest
    left = []
    while cache.evict(1):
        left.append(tuple(len(cache.tree.find(ROOTS[0], text)) for text in texts))
    assert left == [(2, 1, 1), (2, 1, 0), (1, 1, 0), (0, 0, 0)]


def test_a_page_in_use_is_never_evicted_and_a_refusal_evicts_nothing() -> None:
    cache = small(4)
    used, unused = add(cache, [1, 2, 3, 4]), add(cache, [5, 6])
    cache.release(unused)
    assert cache.available == 2
    assert cache.allocate(3) is None and cache.statistics().evicted == 0
    assert cache.allocate(2) is not None and cache.statistics().evicted == 1
    assert cache.evict(9) == 0 and cache.tree.find(ROOTS[0], [1, 2, 3, 4]) == used


def test_statistics_count_whole_pages() -> None:
    cache = small()
    add(cache, [1, 2, 3, 4])
    cache.match(ROOTS[0], [1, 2, 3, 4, 5])
    statistics = cache.statistics()
    assert (statistics.asked, statistics.matched, statistics.hit_rate) == (4, 2, 0.5)
    assert (statistics.held, statistics.cached, statistics.shared, statistics.free) == (2, 0, 2, 6)
    assert small().statistics().hit_rate == 0


def test_a_wrong_insert_is_refused_and_changes_nothing() -> None:
    cache = small()
    pages = add(cache, [1, 2, 3, 4])
    fresh = cache.allocate(1)
    assert fresh is not None
    for tokens, given, message in [
        ([1, 2, 3], pages, "only whole pages"),  # the second page isn't full: its block is still open
        ([1, 2, 3, 4, 5, 6], pages, "only whole pages"),
        ([1, 2, 9, 9], pages, "two places"),
        ([1, 2, 3, 4], pages[::-1], "two places"),
        ([9, 9, 8, 8], fresh * 2, "two places"),
        ([9, 9], [7], "must have a holder"),
    ]:
        with pytest.raises(EngineError, match=message):
            cache.insert(ROOTS[0], tokens, given)
        cache.check([pages, fresh])
    assert cache.tree._roots.keys() == {ROOTS[0]}


def test_a_page_leaves_the_tree_after_those_behind_it() -> None:
    tree = RadixTree(P)
    tree.insert(ROOTS[0], [1, 2, 3, 4], [0, 1])
    with pytest.raises(EngineError, match="page 0 can't leave the tree before the 1 pages behind it"):
        tree.remove(0)
    tree.remove(1)
    tree.remove(0)
    assert tree._roots == {} and len(tree) == 0


def test_the_check_says_what_is_off() -> None:
    def forget(cache: PrefixCache, pages: list[int]) -> None:
        cache._idle.popitem()

    def take(cache: PrefixCache, pages: list[int]) -> None:
        cache.pool.release(pages[1])  # behind the cache's back

    def first_page_first(cache: PrefixCache, pages: list[int]) -> None:
        cache.release(pages[:1])

    def first_page_first_to_the_end(cache: PrefixCache, pages: list[int]) -> None:
        cache.release(pages[:1])
        cache.release(pages[1:])

    def lose(cache: PrefixCache, pages: list[int]) -> None:
        cache.allocate(1)

    def cut(cache: PrefixCache, pages: list[int]) -> None:
        del cache.tree._nodes[pages[1]]

    for spoil, message in [
        (forget, r"4 free \+ 1 cached \+ 2 held pages must be all 8, and are 7"),
        (take, r"4 free \+ 2 cached \+ 1 held pages must be all 8, and are 7"),
        (first_page_first, "has a user who must hold the page before it"),
        (first_page_first_to_the_end, "must be let go before the page before it"),
        (lose, r"page \d has 1 users, and the requests account for 0"),
        (cut, "the index doesn't have it"),
    ]:
        cache = small()
        cache.release(add(cache, [5, 6, 7, 8]))
        pages = add(cache, [1, 2, 3, 4])
        cache.check([pages])
        spoil(cache, pages)
        with pytest.raises(EngineError, match=message):
            cache.check([pages])


def test_everything_is_refused_without_assertions_too() -> None:
    """Under `python -O`: the same random runs, and the same errors."""
    code = """
from redraft.engine.prefix_cache import PrefixCache
from redraft.engine.pages import PagePool
from redraft.engine.radix import RootKey
from redraft.errors import EngineError
def refused(call, *given):
    try:
        call(*given)
    except EngineError:
        return 1
    return 0
cache, root = PrefixCache(PagePool(4), 2), RootKey(0, 32)
pages = cache.allocate(2)
count = refused(cache.insert, root, [1, 2, 3], pages)
cache.insert(root, [1, 2, 3, 4], pages)
count += refused(cache.pool.require_writable, pages)
cache.release(pages)
cache.check([])
cache.evict(4)
count += refused(cache.release, pages)
cache.pool._free.pop()
count += refused(cache.check)
print(__debug__, count)
"""
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-O", "-c", f"import sys; sys.path.insert(0, {source!r})\n{code}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "4"]
