"""One-sided memory: what a rank shows to the others, and how they read and change it without its help."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

WORD = 8
"""Bytes of a word, an int64."""


class Window:
    """Memory of every rank, which all ranks can read and change at any time (passive target)."""

    def __init__(self, comm: MPI.Intracomm, size: int) -> None:
        """`size`: bytes of this rank's memory, all 0 at first; every rank calls this."""
        self._window = MPI.Win.Allocate(max(size, WORD), 1, MPI.INFO_NULL, comm)
        self.memory = np.asarray(self._window.tomemory(), np.uint8)
        """[bytes] uint8, of this rank."""
        self.memory[:] = 0
        self.rank = int(comm.rank)
        self._answer, self._given, self._expected = (np.zeros(1, np.int64) for _ in range(3))
        # No lock is contended: words are changed by atomic operations, the rest by one rank at a time, as words say.
        self._window.Lock_all(MPI.MODE_NOCHECK)

    def read(self, rank: int, place: int) -> int:
        """Return a word of a rank."""
        return self._fetch(rank, place, 0, MPI.NO_OP)

    def add(self, rank: int, place: int, value: int) -> int:
        """Add to a word of a rank, and return what it was."""
        return self._fetch(rank, place, value, MPI.SUM)

    def write(self, rank: int, place: int, value: int) -> None:
        """Set a word of a rank; what this rank has written before is there first."""
        self._window.Sync()
        self._fetch(rank, place, value, MPI.REPLACE)

    def set_bit(self, rank: int, place: int, bit: int) -> None:
        """Set a bit of the words from `place` on."""
        self._window.Sync()
        mask = np.array(1 << bit % 63, np.int64)
        self._fetch(rank, place + bit // 63 * WORD, int(mask), MPI.BOR)

    def swap(self, rank: int, place: int, expected: int, value: int) -> bool:
        """Set a word of a rank to `value` if it is `expected`; return whether it was."""
        self._given[0], self._expected[0] = value, expected
        self._window.Compare_and_swap(self._given, self._expected, self._answer, rank, place)
        self._window.Flush(rank)
        return bool(self._answer[0] == expected)

    def get(self, rank: int, place: int, into: np.ndarray) -> None:
        """Copy bytes of a rank."""
        self._window.Get(into, rank, (place, into.nbytes, MPI.BYTE))
        self._window.Flush(rank)

    def free(self) -> None:
        """Give the memory back; every rank calls this."""
        del self.memory
        self._window.Unlock_all()
        self._window.Free()

    def _fetch(self, rank: int, place: int, value: int, operation: MPI.Op) -> int:
        self._given[0] = value
        self._window.Fetch_and_op(self._given, self._answer, rank, place, operation)
        self._window.Flush(rank)
        return int(self._answer[0])


def bits(window: Window, rank: int, place: int, count: int) -> list[bool]:
    """Return `count` bits that `set_bit` sets."""
    words = [window.read(rank, place + word * WORD) for word in range(bit_words(count))]
    return [bool(words[bit // 63] >> bit % 63 & 1) for bit in range(count)]


def bit_words(count: int) -> int:
    """Return the words that hold `count` bits."""
    return -(-count // 63)


class Board:
    """The newest of the values that a rank shows, in two places in turn: one can be read while the other is written.

    Words: the number of the newest value; for each place the number of its value before and after the bytes. A reader
    that finds different numbers was overtaken, and reads again.
    """

    def __init__(self, window: Window, place: int, size: int) -> None:
        """`place`: where it begins in the memory of every rank that has one; `size`: bytes of a value."""
        self._window, self._place, self._size = window, place, size

    @staticmethod
    def bytes(size: int) -> int:
        """Return the bytes of a board of values of `size` bytes."""
        return WORD + 2 * (2 * WORD + size)

    def show(self, number: int, value: np.ndarray) -> None:
        """Show a value to the others; numbers count from 1."""
        window, begin = self._window, self._slot(number)
        window.write(window.rank, begin, number)
        window.memory[begin + WORD : begin + WORD + self._size] = value
        window.write(window.rank, begin + WORD + self._size, number)
        window.write(window.rank, self._place, number)

    def number(self, rank: int) -> int:
        """Return the number of the newest value of a rank; 0: none yet."""
        return self._window.read(rank, self._place)

    def read(self, rank: int, into: np.ndarray) -> int:
        """Copy the newest value of a rank and return its number; 0 if it was overtaken or there is none."""
        window, number = self._window, self.number(rank)
        begin = self._slot(number)
        if not number or window.read(rank, begin + WORD + self._size) != number:
            return 0
        window.get(rank, begin + WORD, into)
        return number if window.read(rank, begin) == number else 0

    def _slot(self, number: int) -> int:
        return self._place + WORD + number % 2 * (2 * WORD + self._size)


class Ring:
    """The rollouts that an actor has made and nobody has taken: `places` of them at most, in its own memory.

    A bounded queue with numbered places (D. Vyukov, "Bounded MPMC queue", 1024cores.net) and one producer: the place of
    value n says n if it is free for it, and n + 1 if it holds it. Words: the number of the first value that is not taken;
    for each place its number.
    """

    def __init__(self, window: Window, place: int, places: int, size: int) -> None:
        """`place`: where it begins in the memory of every rank that has one; `size`: bytes of a value."""
        self._window, self._place, self._places, self._size = window, place, places, size

    @staticmethod
    def bytes(places: int, size: int) -> int:
        """Return the bytes of a ring."""
        return WORD * (1 + places) + places * size

    def begin(self) -> None:
        """Number the places of this rank's ring."""
        for place in range(self._places):
            self._window.write(self._window.rank, self._word(place), place)

    def has_room(self, number: int) -> bool:
        """Return whether this rank can push value `number`."""
        return self._window.read(self._window.rank, self._word(number)) == number

    def push(self, number: int, value: np.ndarray) -> None:
        """Push value `number`, for which there is room."""
        begin = self._bytes_of(number)
        self._window.memory[begin : begin + self._size] = value
        self._window.write(self._window.rank, self._word(number), number + 1)

    def pop(self, rank: int, into: np.ndarray) -> bool:
        """Take the oldest value of a rank; return whether there was one."""
        window = self._window
        while True:
            first = window.read(rank, self._place)
            if window.read(rank, self._word(first)) != first + 1:
                return False
            if window.swap(rank, self._place, first, first + 1):  # else somebody else took it
                window.get(rank, self._bytes_of(first), into)
                window.write(rank, self._word(first), first + self._places)
                return True

    def _word(self, number: int) -> int:
        return self._place + WORD * (1 + number % self._places)

    def _bytes_of(self, number: int) -> int:
        return self._place + WORD * (1 + self._places) + number % self._places * self._size
