"""`accelerate launch`, with what a run in a container needs of it: `python -m finetune.launcher ARGS`.

For one process, accelerate's launcher starts a child and dies alone when it gets SIGTERM (or, as PID 1 of a
container, ignores it); for several, torchrun kills them 30 s after it. Any failure of the child becomes a traceback and
exit code 1. Here SIGTERM and Ctrl-C are passed on to the workers (stopping.py), which end the run in order, and the
worker's exit code is the launcher's.
"""

import os
import signal
import sys
import threading
from subprocess import CalledProcessError

import psutil

from finetune.errors import Interrupted

PASSED_ON = (signal.SIGTERM, signal.SIGINT)
"""launch.py blocked them on the way here."""


def main() -> int:
    """Launch, wait, and give the worker's exit code. Signals are 128 + their number, as in a shell."""
    # In a thread of its own, before the imports, which take seconds: torchrun has handlers for the main thread.
    # Workers inherit what is blocked, until they listen.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*PASSED_ON, signal.SIGUSR1))
    threading.Thread(target=_pass_on, name="signals", daemon=True).start()
    from accelerate.commands.launch import main as accelerate_launch
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        accelerate_launch()
    except CalledProcessError as error:
        return _exit_code(error.returncode)
    except ChildFailedError as error:
        return _exit_code(error.get_first_failure()[1].exitcode)
    return 0


def _pass_on() -> None:
    while True:
        signal.sigwait(PASSED_ON)
        children = psutil.Process().children()
        if not children:
            print("stopped: nothing had begun; the same command begins again", file=sys.stderr, flush=True)
            os._exit(Interrupted.exit_code)
        for child in children:
            child.send_signal(signal.SIGUSR1)


def _exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
