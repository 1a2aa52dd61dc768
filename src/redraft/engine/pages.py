"""Pages: how long they are and who holds which. What lies in them is for `PageStorage`, on the forward's side."""

from __future__ import annotations

from collections.abc import Iterable

from redraft.errors import EngineError, InvalidInput

MIN_PAGE_LENGTH = 32


def page_length(block_length: int) -> int:
    """Positions of a page: the smallest multiple of the block length that is at least 32.

    A block of 32 or more is a page. Shorter blocks lie several to a page: 32 of length 1, 4 of length 8, 2 of length
    16. A page begins and ends at a block's border, and no position sees past its own block; so the keys and values of
    a full page depend on the tokens up to its end and on nothing behind it, whatever the block length, which is what
    makes sharing it exact. Only full pages are shared: of several blocks a page, those frozen in a page that isn't
    full yet belong to their sequence alone, and a repeated prompt reads at most a page less one position again.
    """
    return block_length * -(-MIN_PAGE_LENGTH // block_length)


class PagePool:
    """The accounts of `count` pages: a page is free, or has holders (requests; the prefix cache counts as one).

    Nothing here waits or evicts: out of pages is an answer, None, since the scheduler meets it in the normal course
    and has to choose what to preempt. Using a page that one doesn't hold is an `EngineError`.
    """

    def __init__(self, count: int) -> None:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidInput(f"pages must be a positive integer, got {count!r}")
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._holders = [0] * count

    @property
    def free(self) -> int:
        """Number of free pages."""
        return len(self._free)

    def allocate(self, number: int) -> list[int] | None:
        """`number` free pages, each with one holder; None, and nothing taken, when fewer are free."""
        if number > len(self._free):
            return None
        pages = [self._free.pop() for _ in range(number)]
        for page in pages:
            self._holders[page] = 1
        return pages

    def holders(self, page: int) -> int:
        return self._holders[page]

    def retain(self, page: int) -> None:
        """One more holder of a page that has some."""
        self.require_held((page,))
        self._holders[page] += 1

    def release(self, page: int) -> int:
        """One holder less; without any the page is free. Returns the number left."""
        self.require_held((page,))
        self._holders[page] -= 1
        if not self._holders[page]:
            self._free.append(page)
        return self._holders[page]

    def require_held(self, pages: Iterable[int]) -> None:
        for page in pages:
            if not 0 <= page < self.count or not self._holders[page]:
                raise EngineError(f"page {page} must have a holder to be used, and it has none")

    def require_writable(self, pages: Iterable[int]) -> None:
        """A page may be written while one request is its only holder: neither shared nor in the prefix cache."""
        for page in pages:
            if not 0 <= page < self.count or self._holders[page] != 1:
                holders = self._holders[page] if 0 <= page < self.count else 0
                raise EngineError(f"page {page} must have one holder to be written, and it has {holders}")

    def check(self) -> None:
        """EngineError unless the free pages are exactly those without a holder, each once."""
        unheld = [page for page, holders in enumerate(self._holders) if not holders]
        if sorted(self._free) != unheld:
            raise EngineError(f"the free pages must be those without a holder, {unheld}, and are {sorted(self._free)}")
