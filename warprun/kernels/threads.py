"""CPU threads, which share kernel calls (`Team`) or Python functions that release the lock of Python (`Threads`).

Numba's parallel loops are not used: they would compile every kernel a second time and add a second thread pool beside
torch's.

Between two kernels of a training Python needs some microseconds, and a sleeping thread begins to work only after 20 to
50. So a thread of a team that has finished its share looks for more for SPINS rounds before it sleeps. All of this is
machine code (CODE), which takes neither the lock of Python nor a `Future` for each call. Each thread but the caller's
has a *slot* of memory: its state, what it is to do, and how that ended.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from llvmlite import binding as llvm
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from warprun.kernels.bound import Call, Made, check

SPINS = 4000
"""Looks for work before a thread sleeps: about 100 microseconds, longer than Python takes between the kernels of an iteration."""
PATIENCE = 2000
"""Looks for the end of the others' work before the calling thread offers its processor to another thread."""
HAND_OFF = 400_000
"""Floating-point operations from which on a second thread takes a part of a call.

At 100 operations a nanosecond these are 4 microseconds: more than it takes to hand over work to a thread that is awake, and to fetch what
it computes with from the cache of the other one.
"""
SLOT = 64
"""Words of eight bytes that a thread has for itself: whole cache lines, and room for a mutex and a condition of POSIX."""

WORDS = {"entry": 1, "arguments": 2, "first": 3, "last": 4, "thread": 5, "status": 6, "mutex": 16, "condition": 32}
"""Words of a slot; word 0 is its state."""
IDLE, ASLEEP, WORK, QUIT = 0, 1, 2, 3
"""States. The caller alone writes WORK and QUIT, the thread writes IDLE after WORK and ASLEEP after IDLE."""

_X86, _ARM = ("@llvm.x86.sse2.pause()", "@llvm.x86.sse2.pause()"), ("@llvm.aarch64.hint(i32)", "@llvm.aarch64.hint(i32 1)")
PAUSE = {"x86_64": _X86, "AMD64": _X86, "arm64": _ARM, "aarch64": _ARM}.get(platform.machine())
"""Declaration and call of the instruction that tells a processor that a thread waits in a loop; None: there is none."""
DECLARATION, CALL = (f"declare void {PAUSE[0]}", f"call void {PAUSE[1]}") if PAUSE else ("", "")


def _words(slot: str, *names: str) -> str:
    """Return LLVM's code for the addresses of words of a slot, `%NAME.at` each."""
    return "\n  ".join(f"%{name}.at = getelementptr i64, ptr {slot}, i64 {WORDS[name]}" for name in names)


CODE = f"""
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @sched_yield()
{DECLARATION}

; Prepare the slot of a thread.
define void @warprun_open(ptr %slot) {{
  {_words("%slot", "mutex", "condition")}
  %a = call i32 @pthread_mutex_init(ptr %mutex.at, ptr null)
  %b = call i32 @pthread_cond_init(ptr %condition.at, ptr null)
  ret void
}}

; Set the state of a thread, and wake it if it sleeps.
define void @warprun_tell(ptr %slot, i64 %state) {{
  %before = atomicrmw xchg ptr %slot, i64 %state acq_rel
  %sleeps = icmp eq i64 %before, {ASLEEP}
  br i1 %sleeps, label %wake, label %done
wake:
  {_words("%slot", "mutex", "condition")}
  %a = call i32 @pthread_mutex_lock(ptr %mutex.at)
  %b = call i32 @pthread_cond_signal(ptr %condition.at)
  %c = call i32 @pthread_mutex_unlock(ptr %mutex.at)
  br label %done
done:
  ret void
}}

; The life of a thread: do what the slot says, look for more, sleep, until it is told to quit.
define void @warprun_serve(ptr %slot) {{
  {_words("%slot", "entry", "arguments", "first", "last", "thread", "status", "mutex", "condition")}
  br label %idle
idle:
  br label %look
look:
  %looks = phi i64 [ {SPINS}, %idle ], [ %fewer, %again ]
  %state = load atomic i64, ptr %slot acquire, align 8
  switch i64 %state, label %again [ i64 {WORK}, label %work  i64 {QUIT}, label %quit ]
again:
  {CALL}
  %fewer = sub i64 %looks, 1
  %tired = icmp eq i64 %fewer, 0
  br i1 %tired, label %lie_down, label %look
lie_down:
  %a = call i32 @pthread_mutex_lock(ptr %mutex.at)
  %pair = cmpxchg ptr %slot, i64 {IDLE}, i64 {ASLEEP} acq_rel acquire
  br label %sleep
sleep:
  %now = load atomic i64, ptr %slot acquire, align 8
  %asleep = icmp eq i64 %now, {ASLEEP}
  br i1 %asleep, label %wait, label %get_up
wait:
  %b = call i32 @pthread_cond_wait(ptr %condition.at, ptr %mutex.at)
  br label %sleep
get_up:
  %c = call i32 @pthread_mutex_unlock(ptr %mutex.at)
  br label %idle
work:
  %entry = load ptr, ptr %entry.at
  %arguments = load ptr, ptr %arguments.at
  %first = load i64, ptr %first.at
  %last = load i64, ptr %last.at
  %thread = load i64, ptr %thread.at
  %status = call i32 %entry(ptr %arguments, i64 %first, i64 %last, i64 %thread)
  %wide = sext i32 %status to i64
  store i64 %wide, ptr %status.at
  store atomic i64 {IDLE}, ptr %slot release, align 8
  br label %idle
quit:
  ret void
}}

; Split `total` items between `count` threads, of which the calling one is the first; return the status of the first that fails, or 0.
define i32 @warprun_share(ptr %slots, i64 %count, ptr %entry, ptr %arguments, i64 %total) {{
begin:
  %own_end = udiv i64 %total, %count
  %alone = icmp eq i64 %count, 1
  br i1 %alone, label %own, label %post
post:
  %n = phi i64 [ 1, %begin ], [ %next, %post ]
  %first = phi i64 [ %own_end, %begin ], [ %last, %post ]
  %next = add i64 %n, 1
  %until = mul i64 %total, %next
  %last = udiv i64 %until, %count
  %at = mul i64 %n, {SLOT}
  %slot = getelementptr i64, ptr %slots, i64 %at
  {_words("%slot", "entry", "arguments", "first", "last", "thread")}
  store ptr %entry, ptr %entry.at
  store ptr %arguments, ptr %arguments.at
  store i64 %first, ptr %first.at
  store i64 %last, ptr %last.at
  store i64 %n, ptr %thread.at
  call void @warprun_tell(ptr %slot, i64 {WORK})
  %more = icmp ult i64 %next, %count
  br i1 %more, label %post, label %own
own:
  %own_status = call i32 %entry(ptr %arguments, i64 0, i64 %own_end, i64 0)
  br i1 %alone, label %end, label %join
join:
  %m = phi i64 [ 1, %own ], [ %m_next, %joined ]
  %found = phi i32 [ %own_status, %own ], [ %worst, %joined ]
  %its = mul i64 %m, {SLOT}
  %other = getelementptr i64, ptr %slots, i64 %its
  {_words("%other", "status")}
  br label %look
look:
  %looks = phi i64 [ 0, %join ], [ %counted, %busy ], [ %counted, %offer ]
  %state = load atomic i64, ptr %other acquire, align 8
  %works = icmp eq i64 %state, {WORK}
  br i1 %works, label %busy, label %joined
busy:
  {CALL}
  %counted = add i64 %looks, 1
  %impatient = icmp ugt i64 %counted, {PATIENCE}
  br i1 %impatient, label %offer, label %look
offer:
  %d = call i32 @sched_yield()
  br label %look
joined:
  %wide = load i64, ptr %status.at
  %status = trunc i64 %wide to i32
  %fine = icmp eq i32 %found, 0
  %worst = select i1 %fine, i32 %status, i32 %found
  %m_next = add i64 %m, 1
  %all = icmp eq i64 %m_next, %count
  br i1 %all, label %end, label %join
end:
  %result = phi i32 [ %own_status, %own ], [ %worst, %joined ]
  ret i32 %result
}}

; Make `number` calls in turn, each split between at most `most` threads; return the status of the first that fails, or 0.
define i32 @warprun_repeat(ptr %slots, ptr %calls, i64 %number, i64 %most) {{
begin:
  br label %next
next:
  %n = phi i64 [ 0, %begin ], [ %after, %going ]
  %at = mul i64 %n, 4
  %call = getelementptr i64, ptr %calls, i64 %at
  %arguments.at = getelementptr i64, ptr %call, i64 1
  %total.at = getelementptr i64, ptr %call, i64 2
  %count.at = getelementptr i64, ptr %call, i64 3
  %entry = load ptr, ptr %call
  %arguments = load ptr, ptr %arguments.at
  %total = load i64, ptr %total.at
  %wanted = load i64, ptr %count.at
  %few = icmp ult i64 %wanted, %most
  %count = select i1 %few, i64 %wanted, i64 %most
  %status = call i32 @warprun_share(ptr %slots, i64 %count, ptr %entry, ptr %arguments, i64 %total)
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %going, label %end
going:
  %after = add i64 %n, 1
  %more = icmp ult i64 %after, %number
  br i1 %more, label %next, label %end
end:
  %result = phi i32 [ %status, %next ], [ 0, %going ]
  ret i32 %result
}}
"""


class Team:
    """`count` threads, of which the calling one is the first; the others are made at the first call that needs them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._others: list[threading.Thread] = []
        self._free = threading.Lock()
        """Held while the other threads work; a second caller works alone."""
        self._slots = np.zeros((count, SLOT), np.int64)

    def share(self, call: Call, total: int, operations: float = float("inf")) -> None:
        """Do the items 0 .. `total` - 1 of a kernel, split evenly between the threads; wait for all.

        `operations`: floating-point operations of the call, if they are known. Threads do not change results, so one does a small call.
        """
        count = min(self.count, total) if operations > HAND_OFF and call.compiled() else 1
        call.note(total, count)
        if not self._take(count):
            call.run(0, total, 0)
            return
        try:
            check(_functions()["share"](self._slots.ctypes.data, count, call.code, call.address, total))
        finally:
            self._free.release()

    def repeating(self, calls: Sequence[Made]) -> Callable[[], None]:
        """Return a function that makes these calls again, one after the other, without Python between them."""
        arguments = [np.frombuffer(call.arguments, np.uint8).copy() for call in calls]
        made = np.array([(call.code, a.ctypes.data, call.total, call.count) for call, a in zip(calls, arguments, strict=True)], np.int64)
        kept = arguments, [call.kept for call in calls]
        slots, address, most, run = self._slots.ctypes.data, made.ctypes.data, max(call.count for call in calls), _functions()["repeat"]

        def repeat(memory: object = (made, kept)) -> None:  # whose default keeps the memory of the calls
            taken = self._take(most)
            try:
                check(run(slots, address, len(made), most if taken else 1))
            finally:
                if taken:
                    self._free.release()

        return repeat

    def _take(self, count: int) -> bool:
        """Return whether the caller has `count` threads for itself until it releases `_free`; if not, it works alone."""
        if count < 2 or not self._free.acquire(blocking=False):
            return False
        try:
            if not self._others:
                self._begin()
        except BaseException:
            self._free.release()
            raise
        return True

    def _begin(self) -> None:
        functions = _functions()
        for n in range(1, self.count):
            slot = self._slots[n].ctypes.data
            functions["open"](slot)
            # It never runs Python again, so nothing of it has to end before Python does.
            self._others.append(threading.Thread(target=functions["serve"], args=(slot,), name=f"warprun-{n}", daemon=True))
            self._others[-1].start()
        atexit.register(self._end)
        os.register_at_fork(after_in_child=self._forget)

    def _end(self) -> None:
        self._free.acquire()  # waits for a call of another thread, and lets all later ones work alone
        for n, thread in enumerate(self._others, start=1):
            _functions()["tell"](self._slots[n].ctypes.data, QUIT)
            thread.join()

    def _forget(self) -> None:
        # A forked process has a copy of the memory, and of the threads only the one that has forked.
        self._others, self._free = [], threading.Lock()
        self._slots[:] = 0


_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_KINDS = {
    "open": ctypes.CFUNCTYPE(None, _POINTER),
    "tell": ctypes.CFUNCTYPE(None, _POINTER, _NUMBER),
    "serve": ctypes.CFUNCTYPE(None, _POINTER),
    "share": ctypes.CFUNCTYPE(ctypes.c_int32, _POINTER, _NUMBER, _POINTER, _POINTER, _NUMBER),
    "repeat": ctypes.CFUNCTYPE(ctypes.c_int32, _POINTER, _POINTER, _NUMBER, _NUMBER),
}
_kept: list[object] = []
"""Libraries whose machine code is in use."""


@cache
@global_compiler_lock
def _functions() -> dict[str, Callable[..., int]]:
    """Return the functions of CODE by name."""
    library = cpu_target.target_context.codegen().create_library("warprun_team")
    library.add_llvm_module(llvm.parse_assembly(CODE))
    library.finalize()
    _kept.append(library)
    return {name: kind(library.get_pointer_to_function(f"warprun_{name}")) for name, kind in _KINDS.items()}


@cache
def team(count: int) -> Team:
    """Return the team of `count` threads of this process."""
    return Team(count)


class Threads:
    """A pool of `count` threads, including the calling thread."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Make the pool, also in a forked process, which has a copy of the memory, and of the threads only the one that has forked."""
        # torch keeps the number of OpenMP threads per thread, so every worker has to set it.
        self.pool = ThreadPoolExecutor(self.count - 1, "warprun", torch.set_num_threads, (1,)) if self.count > 1 else None

    def share(self, work: Callable[[int, int, int], None], total: int) -> None:
        """Split the items 0 .. `total` - 1 evenly and call `work(begin, end, thread)` on each thread that gets any; wait for all."""
        # Waking a thread can take longer than one item, so a thread without items is not woken.
        count = max(1, min(self.count, total))
        ends = [total * n // count for n in range(count + 1)]
        others = [self.pool.submit(work, ends[n], ends[n + 1], n) for n in range(1, count)] if self.pool else []
        try:
            work(ends[0], ends[1], 0)
        finally:
            # Also after an error: no thread may still write when the caller continues.
            for other in others:
                other.exception()
        for other in others:
            other.result()


@cache
def threads(count: int) -> Threads:
    """Return the pool of `count` threads of this process, created at the first call."""
    return Threads(count)
