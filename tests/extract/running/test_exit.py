"""Signals that reach a command."""

import signal
import subprocess
import sys

import pytest

HUNG = """
import signal, time
from extract.running.exit import end_process, exit_status

def work():
    try:
        print(flush=True)
        time.sleep(60)
    finally:
        print(flush=True)  # the cleanup hangs
        time.sleep(60)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores SIGINT in background jobs
end_process(lambda: exit_status(work))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_cleanup_is_ignored_for_a_second_and_then_ends_the_process(
    number: signal.Signals, status: int
) -> None:
    with subprocess.Popen([sys.executable, "-c", HUNG], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        for _ in range(3):
            process.send_signal(number)
        assert process.stdout.readline() == b"\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.2)
        process.send_signal(number)
        assert process.communicate(timeout=10) == (b"", b"")
        assert process.returncode == status


def test_sigint_stays_ignored_where_the_parent_process_ignores_it() -> None:
    """A shell ignores SIGINT in the commands that it starts in the background."""
    program = """
import signal
from extract.running.exit import end_process, run_async

async def work():
    signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.SIG_IGN)
end_process(lambda: signal.raise_signal(signal.SIGINT) or run_async(work()) or 0)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
