"""Datasets through Hugging Face's `datasets`: a saved folder, Parquet, CSV, JSON, or the hub; by row or as a stream."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from redraft.errors import ConfigError
from redraft.training.data.config import COLUMNS, SourceConfig
from redraft.training.data.rows import BadRow, kind_of, parse, texts, with_standard_names
from redraft.training.data.table import BadRowAt, Found

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

BUILDERS = {".json": "json", ".parquet": "parquet", ".csv": "csv"}
PROBES = 64  # rows that a fingerprint looks at


class HubTable:
    """The rows of a dataset on disk, memory-mapped.

    fingerprint: a hash of the number of rows and of `PROBES` of them spread over the dataset.
    """

    def __init__(self, config: SourceConfig) -> None:
        self._data: Dataset = _narrowed(_open(config, streaming=False), config)
        self._name = _name(config)
        digest = hashlib.blake2b(str(len(self._data)).encode(), digest_size=8)
        for row in range(0, len(self._data), max(1, len(self._data) // PROBES)):
            digest.update(json.dumps(self._data[row], sort_keys=True, default=str).encode())
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return _plain(self._data[row])

    def where(self, row: int) -> str:
        return f"{self._name}, row {row}"


class HubStream:
    """A dataset read in order, without being stored; shuffled a buffer at a time, anew in each epoch.

    Going forward is cheap. A row that lies elsewhere, as after resuming, is reached by reading up to it from the start
    of its epoch; behind the first epoch the whole dataset is read once more to learn its length. Every process reads
    the whole stream. Its kind is that of its first good row.
    """

    rows = None

    def __init__(self, config: SourceConfig, seed: int, *, shuffle: bool) -> None:
        self._config, self._name, self._seed, self._shuffle = config, _name(config), seed, shuffle
        self._data: IterableDataset = _narrowed(_open(config, streaming=True), config)
        self.fingerprint = hashlib.blake2b(f"{self._name}:{config.revision}".encode(), digest_size=8).hexdigest()
        self._length: int | None = None
        self._kind = self._first_kind()
        self._epoch, self._next = 0, 0
        self._rows = self._read(0, 0)

    def __getitem__(self, index: int) -> Found:
        where = f"{self._name}, row {index} of the stream"
        try:
            raw = with_standard_names(self._raw(index), self._config.columns)
            return Found(parse(raw, self._kind, chat=self._config.chat), where)
        except BadRow as error:
            raise BadRowAt(f"{where}: {error}") from error

    def texts(self, index: int) -> Iterator[str]:
        try:
            return texts(self[index].row)
        except BadRow:
            return iter(())

    def _first_kind(self) -> str:
        reason = "it has no rows"
        for row in itertools.islice(self._data, PROBES):
            try:
                return kind_of(with_standard_names(_plain(row), self._config.columns))
            except BadRow as error:
                reason = f"none of its first rows can be trained on: {error}"
        raise ConfigError(f"data.sources: {self._name}: {reason}")

    def _raw(self, index: int) -> dict[str, Any]:
        epoch, place = divmod(index, self._length) if self._length else (0, index)
        row = self._at(epoch, place)
        if row is None and self._length is None:  # behind the end of the first epoch
            self._length = sum(1 for _ in self._data)
            row = self._at(*divmod(index, self._length))
        if row is None:
            raise ConfigError(f"data.sources: {self._name} lost rows while it was read; start the run again")
        return _plain(row)

    def _at(self, epoch: int, place: int) -> dict[str, Any] | None:
        """A row of an epoch, None behind its end."""
        if epoch != self._epoch or place < self._next:
            self._rows = self._read(epoch, place)
            self._epoch, self._next = epoch, place
        row = next(itertools.islice(self._rows, place - self._next, None), None)
        self._next = place + 1
        return row

    def _read(self, epoch: int, first: int) -> Iterator[dict[str, Any]]:
        """An epoch's rows from the first asked for."""
        data = self._data
        if self._shuffle:
            # A seed of its own for each epoch: `set_epoch` doesn't reach through `skip`.
            seed = int(np.random.SeedSequence((self._seed, epoch)).generate_state(1)[0])
            data = data.shuffle(seed=seed, buffer_size=self._config.buffer)
        return iter(data.skip(first) if first else data)


def _open(config: SourceConfig, *, streaming: bool) -> Any:
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ImportError:
        raise ConfigError(
            f"data.sources: {config.path} needs the package datasets: pip install 'redraft[train]'"
        ) from None
    path = Path(config.path)
    try:
        if path.is_dir() and any((path / name).exists() for name in ("state.json", "dataset_dict.json")):
            return _saved(datasets.load_from_disk(config.path), config, streaming)
        if path.is_file():
            kind = BUILDERS[path.suffix]
            return datasets.load_dataset(kind, data_files=config.path, split=config.split, streaming=streaming)
        return datasets.load_dataset(
            config.path,
            config.subset or None,
            revision=config.revision or None,
            split=config.split,
            streaming=streaming,
        )
    except (OSError, ValueError, KeyError, DatasetsError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"data.sources: can't open {_name(config)}: {reason}") from error


def _saved(data: Any, config: SourceConfig, streaming: bool) -> Any:
    """The asked split of a folder that `datasets` saved."""
    if isinstance(data, Mapping):
        if config.split not in data:
            raise ConfigError(f"data.sources: {config.path} has no split {config.split!r}; it has {', '.join(data)}")
        data = data[config.split]
    return data.to_iterable_dataset() if streaming else data


def _narrowed(data: Any, config: SourceConfig) -> Any:
    """The columns that a row needs, so that no others are decoded."""
    names = {*COLUMNS, *config.columns.values()}
    if data.column_names is None:
        return data
    kept = [name for name in data.column_names if name in names]
    return data.select_columns(kept) if kept else data


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """The row without the None with which Arrow fills the fields that an object lacks."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: cleaned(item) for name, item in value.items() if item is not None}
        return [cleaned(item) for item in value] if isinstance(value, list) else value

    return {name: cleaned(value) for name, value in row.items()}


def _name(config: SourceConfig) -> str:
    return f"{config.path} ({', '.join(filter(None, [config.subset, config.split]))})"
