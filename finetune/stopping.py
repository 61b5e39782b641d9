"""Being told to stop (SIGTERM, Ctrl-C): finish the step in hand, save, and leave within the time that is given.

The launcher gets the signal and passes it on as SIGUSR1; a signal to all processes of a run reaches the worker twice,
and counts as one. A second one, later, ends the run at once. Signals are waited for in a thread of their own: the
main one may be deep in a collective operation, and would not hear them.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from accelerate import PartialState
from torch import distributed

from finetune.errors import Interrupted

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SAME_S = 1.0
"""Signals closer together are one, that went to the launcher and to its processes."""
CODE = Interrupted.exit_code


class Stop:
    """Whether the run was told to stop, and the thread that listens. `flush` makes durable what is on its way."""

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self.flush: Callable[[], None] = lambda: None
        self._requested = threading.Event()
        self._orderly = self._leaving = False
        self._lock = threading.Lock()

    def listen(self) -> None:
        """Take the signals over, from here on."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        # Processes that read images are ended by SIGTERM.
        os.register_at_fork(after_in_child=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM]))
        threading.Thread(target=self._wait, name="signals", daemon=True).start()

    @contextmanager
    def orderly(self) -> Iterator[None]:
        """In the block the run asks by itself, at every step, whether it should stop. Elsewhere there is nothing to
        finish or save, and it ends when it is told to."""
        with self._lock:
            self._orderly = True
        try:
            yield
        finally:
            with self._lock:
                self._orderly = False
            if self._requested.is_set() and sys.exc_info()[0] is None:
                self._end()

    def leave(self) -> None:
        """From here on signals change nothing: the process is about to end."""
        self._leaving = True

    def agreed(self, due: bool = False) -> tuple[bool, bool]:
        """Whether any process was told to stop, and whether the first one says that something is due: the same answer
        on all processes, each of which must ask."""
        state = PartialState()
        mine = [self._requested.is_set(), due and state.is_main_process]
        if state.num_processes == 1:
            return mine[0], mine[1]
        flags = torch.tensor(mine, dtype=torch.int32, device=state.device)
        distributed.all_reduce(flags, distributed.ReduceOp.MAX)
        stop, all_due = flags.tolist()
        return bool(stop), bool(all_due)

    def _wait(self) -> None:
        first = 0.0
        while True:
            told = signal.sigwaitinfo(SIGNALS)
            if self._leaving:
                continue
            if told.si_signo == signal.SIGTERM and told.si_pid == os.getppid():
                # torchrun, one of whose other processes has ended; it kills what is not gone after half a minute.
                self.flush()
                os._exit(128 + signal.SIGTERM)
            if not self._requested.is_set():
                first = time.monotonic()
                self._begin()
            elif time.monotonic() - first > SAME_S:
                self._exit("stopped at once: it was told a second time", 128 + signal.SIGTERM)

    def _begin(self) -> None:
        # A tenth is left to the processes above, which have to notice.
        timer = threading.Timer(0.9 * self.grace_s, self._too_late)
        timer.daemon = True
        timer.start()
        with self._lock:
            self._requested.set()
            orderly = self._orderly
        if not orderly:
            self._end()
        _say(f"stopping: the step in hand is finished and saved first, if {self.grace_s:g} s are enough")

    def _end(self) -> None:
        self.flush()
        self._exit("stopped: nothing was in hand; the same command goes on from what is saved", CODE)

    def _too_late(self) -> None:
        hint = "the same command goes on from the last checkpoint that is whole"
        self._exit(f"stopped: the step in hand took longer than the {self.grace_s:g} s there were; {hint}", CODE)

    def _exit(self, text: str, code: int) -> None:
        if not self._leaving:
            _say(text)
            os._exit(code)


def _say(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)
