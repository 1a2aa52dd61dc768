"""Training data: rows of files, datasets and skills, as documents addressed by index."""

from redraft.training.data.config import DataConfig, SourceConfig
from redraft.training.data.pack import pack
from redraft.training.data.source import RowSource, Source, corpus, open_pairs, open_source

__all__ = ["DataConfig", "RowSource", "Source", "SourceConfig", "corpus", "open_pairs", "open_source", "pack"]
