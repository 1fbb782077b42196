"""The tokens that a rank samples in each sweep: in memory, or read again from files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any, Protocol

import numpy as np

from malt._core_import import TopicTokens, checksum
from malt._data.chunks import Chunks, Survey
from malt._errors import ConfigError
from malt._topics.documents import Documents, Empty, as_documents

Begin = Callable[[TopicTokens], object]


class Source(Protocol):
    """A rank's tokens, in blocks; the counts are exchanged after each block."""

    tokens: int

    def begin(self, draw: Begin) -> None:
        """Call `draw` once for each block, to give its tokens their first topics."""

    def blocks(self) -> Iterator[TopicTokens]:
        """Yield each block; its topics are kept when the next one is asked for."""


def tokens_of(documents: Documents, topics: int) -> TopicTokens:
    starts, words, counts, vocabulary = documents
    return TopicTokens(starts, words, counts, vocabulary=vocabulary, topics=topics)


class InMemory:
    """Documents in memory, in blocks of about `every` tokens."""

    def __init__(self, documents: Documents, topics: int, every: int) -> None:
        self.tokens = documents.tokens
        pieces = documents.cut(max(1, -(-self.tokens // every)))
        self._blocks = [tokens_of(piece, topics) for piece in pieces]

    def begin(self, draw: Begin) -> None:
        for block in self._blocks:
            draw(block)

    def blocks(self) -> Iterator[TopicTokens]:
        return iter(self._blocks)


class Streamed:
    """This rank's part of files, a chunk at a time. The topics are in an unnamed temporary file.

    They take 2 bytes a token there, in the folder that Python's tempfile chooses (TMPDIR).
    """

    def __init__(self, chunks: Chunks, survey: Survey, topics: int, call: str) -> None:
        self.tokens = 0
        self._checksums: list[list[int]] = []  # by chunk, as begin() read it
        self._chunks, self._survey, self._topics, self._call = chunks, survey, topics, call
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="malt-topics-")  # noqa: SIM115

    def close(self) -> None:
        self._file.close()

    def begin(self, draw: Begin) -> None:
        empty = Empty()
        for documents in self._read():
            empty.note(documents)
            self._checksums.append(_checksums(documents))
            block = tokens_of(documents, self._topics)
            draw(block)
            self.tokens += len(block)
            block.save().tofile(self._file)
        empty.warn(self._call)

    def blocks(self) -> Iterator[TopicTokens]:
        self._file.seek(0)
        chunks = 0
        for documents in self._read():
            if self._checksums[chunks : chunks + 1] != [_checksums(documents)]:
                self._raise_changed()
            chunks += 1
            block = tokens_of(documents, self._topics)
            at = self._file.tell()
            topics: Any = np.fromfile(self._file, np.uint16, len(block))
            block.restore(topics)
            yield block
            self._file.seek(at)
            block.save().tofile(self._file)
        if chunks < len(self._checksums):
            self._raise_changed()

    def _read(self) -> Iterator[Documents]:
        first = 0
        _, features, zero_based, *_ = self._survey
        for data in self._chunks.read(features, zero_based=zero_based):
            documents = as_documents(data.X, self._call, first)
            yield documents
            first += documents.size

    def _raise_changed(self) -> None:
        raise ConfigError(
            f"{self._call}: the files have changed since this call began, when they had "
            f"{self.tokens} words for this rank; leave them as they are while fit() reads them"
        )


def _checksums(documents: Documents) -> list[int]:
    return [checksum(array) for array in (documents.starts, documents.words, documents.counts)]
