"""The radix tree of shared pages: token ids, a page at a time, lead from a root to the pages that hold them.

A node is a page and its edge that page's tokens: all operations take time linear in the tokens, and nothing is ever
split. The children are found by the tokens themselves, not by a hash of them, so no two texts can be confused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from redraft.errors import EngineError

Tokens = Sequence[int] | np.ndarray


@dataclass(frozen=True, slots=True)
class RootKey:
    """What keys and values depend on besides the tokens; only requests that agree in all of it share pages.

    weights: the version, a new one after every update. block_length: who sees whom. routing: experts that a block
    admits, None for token routing. quantization: the name of the scheme, None for none.
    """

    weights: int | str
    block_length: int
    routing: int | None = None
    quantization: str | None = None


@dataclass(slots=True, eq=False)
class Node:
    """One page under its parent, found there by `edge`, the bytes of its token ids. A root has neither."""

    page: int | None = None
    edge: bytes = b""
    parent: Node | None = None
    children: dict[bytes, Node] = field(default_factory=dict)


class RadixTree:
    """Knows which page follows which; who uses them, and which may go, is for `PrefixCache`."""

    def __init__(self, page_length: int) -> None:
        self.page_length = page_length
        self._roots: dict[RootKey, Node] = {}
        self._nodes: dict[int, Node] = {}

    def __len__(self) -> int:
        """Number of pages."""
        return len(self._nodes)

    def __contains__(self, page: int) -> bool:
        return page in self._nodes

    def find(self, root: RootKey, tokens: Tokens) -> list[int]:
        """The pages of the longest known run of whole pages that `tokens` begin with."""
        node = self._roots.get(root)
        pages = []
        for edge in self._edges(tokens):
            node = node.children.get(edge) if node else None
            if node is None or node.page is None:
                break
            pages.append(node.page)
        return pages

    def insert(self, root: RootKey, tokens: Tokens, pages: Sequence[int]) -> list[int]:
        """Adds the pages that are missing; returns the known run before them, which may be other pages than given.

        tokens: those of exactly these pages. EngineError, and nothing added, when they are not, or when a page is given
        twice or stands elsewhere in the tree: no page is ever in two places.
        """
        if len(tokens) != len(pages) * self.page_length:
            raise EngineError(
                f"{len(pages)} pages hold {len(pages) * self.page_length} tokens; only whole pages can be shared, "
                f"got {len(tokens)} tokens"
            )
        known = self.find(root, tokens)
        new = pages[len(known) :]
        here = [*known, *([None] * len(new))]
        misplaced = [page for page, place in zip(pages, here, strict=True) if page != place and page in self._nodes]
        if misplaced or len(set(pages)) != len(pages):
            raise EngineError(
                f"a page can stand in the tree once; {misplaced or list(pages)} would stand in two places"
            )
        if not new:
            return known
        node = self._nodes[known[-1]] if known else self._roots.setdefault(root, Node())
        for edge, page in zip(self._edges(tokens)[len(known) :], new, strict=True):
            node.children[edge] = self._nodes[page] = Node(page, edge, node)
            node = node.children[edge]
        return known

    def remove(self, page: int) -> None:
        """Takes a leaf out; EngineError for a page with pages behind it, which would no longer be found."""
        node = self._nodes[page]
        if node.children or node.parent is None:
            raise EngineError(f"page {page} can't leave the tree before the {len(node.children)} pages behind it")
        del self._nodes[page], node.parent.children[node.edge]
        if node.parent.page is None and not node.parent.children:  # roots are few: one for each version of the weights
            self._roots = {key: root for key, root in self._roots.items() if root is not node.parent}

    def parent(self, page: int) -> int | None:
        """The page before; None for a sequence's first."""
        parent = self._nodes[page].parent
        return parent.page if parent else None

    def pages(self) -> list[int]:
        """All pages, each after its parent. EngineError when the tree and its index of pages differ."""
        found: list[int] = []
        waiting = list(self._roots.values())
        while waiting:
            for edge, node in waiting.pop().children.items():
                if node.page is None or self._nodes.get(node.page) is not node or node.edge != edge:
                    raise EngineError(f"page {node.page} stands in the tree where the index doesn't have it")
                found.append(node.page)
                waiting.append(node)
        if len(found) != len(self._nodes):
            raise EngineError(f"the tree must hold the {len(self._nodes)} pages of its index, and holds {len(found)}")
        return found

    def _edges(self, tokens: Tokens) -> list[bytes]:
        """The bytes of the ids of each whole page."""
        data = np.asarray(tokens, dtype=np.int64).tobytes()
        width = self.page_length * 8
        return [data[start : start + width] for start in range(0, len(data) - width + 1, width)]
