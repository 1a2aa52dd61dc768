"""The prefix cache: a pool of pages of which those that are done and not in use stay for the next who needs them."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from redraft.engine.pages import PagePool
from redraft.engine.radix import RadixTree, RootKey, Tokens
from redraft.errors import EngineError


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """pages = free + cached + held. cached: in the tree without a user, to be had for the asking. held: of requests.
    shared: in the tree, used or not. asked, matched: whole pages that `match` was asked for and found. evicted: pages
    that left the tree."""

    pages: int
    free: int
    cached: int
    held: int
    shared: int
    asked: int
    matched: int
    evicted: int

    @property
    def hit_rate(self) -> float:
        return self.matched / self.asked if self.asked else 0.0


class PrefixCache:
    """What a scheduler holds pages by. Lists of pages are in the order of their sequence, from its start.

    Two rules make it exact and simple. A page in the tree is never written again (`PagePool.require_writable`), so only
    pages whose blocks are all frozen may be inserted: a block that is still open to editing stays out, and so does a
    page that isn't full. And who holds a page of the tree holds all pages before it, so that the pages without a user
    are whole branches: ordered by when their last user let go, the last page of a sequence first, the oldest is always
    a leaf. Eviction takes it; every page without a user can be had, and `available` is exact.
    """

    def __init__(self, pool: PagePool, page_length: int) -> None:
        self.pool = pool
        self.tree = RadixTree(page_length)
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._asked = self._matched = self._evicted = 0

    @property
    def available(self) -> int:
        """Pages that `allocate` could give now: free ones, and those of the tree without a user."""
        return self.pool.free + len(self._idle)

    def allocate(self, number: int) -> list[int] | None:
        """New pages for one request, evicting what is needed; None, and nothing evicted, when that isn't enough."""
        if number > self.available:
            return None
        self.evict(number - self.pool.free)
        return self.pool.allocate(number)

    def match(self, root: RootKey, tokens: Tokens) -> list[int]:
        """The longest run of shared pages that `tokens` begin with; the caller holds them from now on.

        Every call counts in the hit rate, also one for a request that was preempted.
        """
        pages = self.tree.find(root, tokens)
        for page in pages:
            self._hold(page)
        self._asked += len(tokens) // self.tree.page_length
        self._matched += len(pages)
        return pages

    def insert(self, root: RootKey, tokens: Tokens, pages: Sequence[int]) -> list[int]:
        """Shares a request's frozen pages, from its first on. tokens: all frozen, those of exactly these pages.

        The caller then holds the pages returned in place of those given: where the tree had the same tokens already,
        the caller's copy goes back to the pool and the tree's takes its place. EngineError, and nothing changed, for
        pages that the caller can't hold, partly filled ones, or ones that stand elsewhere in the tree.
        """
        self.pool.require_held(pages)
        known = self.tree.insert(root, tokens, pages)
        new = list(pages[len(known) :])
        for page in new:
            self.pool.retain(page)
        for theirs, own in zip(known, pages, strict=False):
            if theirs != own:
                self._hold(theirs)
                self.release((own,))
        return known + new

    def release(self, pages: Sequence[int]) -> None:
        """The caller no longer holds these: all its pages, or the last ones. Those in the tree stay there."""
        for page in reversed(pages):
            if self.pool.release(page) == 1 and page in self.tree:
                self._idle[page] = None

    def evict(self, number: int) -> int:
        """Frees up to `number` pages without a user, least recently used first; returns how many."""
        number = max(0, min(number, len(self._idle)))
        for _ in range(number):
            page, _ = self._idle.popitem(last=False)
            self.tree.remove(page)
            self.pool.release(page)
        self._evicted += number
        return number

    def statistics(self) -> CacheStatistics:
        free, cached = self.pool.free, len(self._idle)
        return CacheStatistics(
            pages=self.pool.count,
            free=free,
            cached=cached,
            held=self.pool.count - free - cached,
            shared=len(self.tree),
            asked=self._asked,
            matched=self._matched,
            evicted=self._evicted,
        )

    def check(self, requests: Iterable[Sequence[int]] | None = None) -> None:
        """EngineError that says what is off unless free + cached + held are all pages, each in one place.

        requests: the pages of everyone who holds some; every hold must then be one of theirs or the tree's. An empty
        list asks that nobody holds any, which an idle engine must satisfy.
        """
        self.pool.check()
        shared = set(self.tree.pages())
        users = [self.pool.holders(page) - (page in shared) for page in range(self.pool.count)]
        held = sum(number > 0 for number in users)
        free, cached = self.pool.free, len(self._idle)
        if free + cached + held != self.pool.count:
            raise EngineError(
                f"{free} free + {cached} cached + {held} held pages must be all {self.pool.count}, "
                f"and are {free + cached + held}"
            )
        age = {page: place for place, page in enumerate(self._idle)}
        for page in shared:
            if (page in self._idle) == (users[page] > 0) or users[page] < 0:
                state = "is" if page in self._idle else "isn't"
                raise EngineError(f"page {page} of the tree has {users[page]} users and {state} among the cached ones")
            before = self.tree.parent(page)
            if users[page] and before is not None and not users[before]:
                raise EngineError(f"page {page} has a user who must hold the page before it, {before}, and doesn't")
            if before in age and age[page] > age[before]:
                raise EngineError(f"page {page} must be let go before the page before it, {before}, and was after it")
        if requests is None:
            return
        known = Counter(page for pages in requests for page in pages)
        for page, number in enumerate(users):
            if number != known[page]:
                raise EngineError(f"page {page} has {number} users, and the requests account for {known[page]}")

    def _hold(self, page: int) -> None:
        self.pool.retain(page)
        self._idle.pop(page, None)
