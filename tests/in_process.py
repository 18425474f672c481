"""The program in this process, whose signal handlers are put back afterwards."""

import signal

from appo import train_appo
from appo.utils.signals import MAIN_PROCESS_DECIDES


def exit_code_of(words):
    """The exit code of train_appo.py with these words."""
    kept = {number: signal.getsignal(number) for number in MAIN_PROCESS_DECIDES}
    try:
        return train_appo.main(["train_appo.py", *words])
    except SystemExit as ended:
        return ended.code
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
