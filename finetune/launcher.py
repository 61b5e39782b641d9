"""`accelerate launch`, with what a run in a container needs of it: `python -m finetune.launcher ARGS`.

For one process, accelerate's launcher starts a child and dies alone when it gets SIGTERM (or, as PID 1 of a
container, ignores it); and any failure of the child becomes a traceback and exit code 1. Here SIGTERM reaches
the child, and the worker's exit code is the launcher's. Several processes are torchrun's, which forwards by itself.
"""

import signal
import sys
from subprocess import CalledProcessError
from types import FrameType

import psutil


def main() -> int:
    """Launch, wait, and give the worker's exit code. Signals are 128 + their number, as in a shell."""
    # Before the imports, which take seconds: without a handler PID 1 never gets the signal.
    signal.signal(signal.SIGTERM, _forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # launch.py blocked it for the way here
    from accelerate.commands.launch import main as accelerate_launch
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        accelerate_launch()
    except CalledProcessError as error:
        return _exit_code(error.returncode)
    except ChildFailedError as error:
        return _exit_code(error.get_first_failure()[1].exitcode)
    except SignalException as error:
        return 128 + error.sigval
    except KeyboardInterrupt:  # Ctrl-C went to the worker as well: let it finish what it does
        psutil.wait_procs(psutil.Process().children())
        return 128 + signal.SIGINT
    return 0


def _forward(number: int, frame: FrameType | None) -> None:
    children = psutil.Process().children()
    if not children:
        raise SystemExit(128 + number)
    for child in children:
        child.send_signal(number)


def _exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
