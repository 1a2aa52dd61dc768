"""Attention over pages: every row of a batch attends to its own sequence's pages, wherever they lie in the storage.

`prepare` is called once a forward and does all that doesn't depend on the layer. The pages already hold the keys and
values of the batch's rows when a layer attends; the rows of a merged span are the exception, which no page ever holds.
"""

from __future__ import annotations

from typing import Protocol

from redraft.engine.batch import Batch
from redraft.engine.paged_products import ProductAttention
from redraft.engine.storage import PageStorage
from redraft.model.attention import Attend


class PagedAttention(Protocol):
    """A means of attending to pages; keeps nothing from one forward to the next."""

    def prepare(self, batch: Batch) -> Attend:
        """The attention of all layers of one forward."""
        ...


def paged_attention(storage: PageStorage) -> PagedAttention:
    """FlexAttention on a GPU, if its tiles divide the page; products, a sequence at a time, elsewhere."""
    if storage.data.device.type == "cuda":
        from redraft.engine.paged_flex import FlexAttention  # here, as torch loads its compiler for it

        if FlexAttention.fits(storage):
            return FlexAttention(storage)
    return ProductAttention(storage)
