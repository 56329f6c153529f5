"""The reaction of a command in a terminal to stop signals: that to Ctrl-C."""

import signal


def interrupt_on_stop() -> None:
    """Let SIGTERM and SIGHUP interrupt this process like Ctrl-C, so that it cleans up; nohup's choice stays."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
