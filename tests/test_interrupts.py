"""Ctrl-C during a command."""

import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import gc
import sys
import time

from tensorfold import cli

def collected(phase, about):
    print(phase, flush=True)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass

def collect_and_wait(_):
    gc.callbacks.append(collected)
    gc.collect()
    gc.callbacks.clear()
    time.sleep(60)

def collect_and_clean_up(options):
    from tensorfold.interrupts import interrupts_raise
    try:
        with interrupts_raise():
            collect_and_wait(options)
    finally:
        print("cleaned up")

cli._info = locals()[sys.argv[1]]
sys.exit(cli.main(["info"]))
"""


@pytest.mark.parametrize(
    ("command", "last"), [("collect_and_wait", ""), ("collect_and_clean_up", "cleaned up\n")]
)
def test_one_in_a_callback_of_the_collector_is_not_lost(command: str, last: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "start\n"
        interrupted = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert time.monotonic() - interrupted < 10
    finally:
        process.kill()
    assert (process.returncode, err) == (130, "")
    assert out.removeprefix("stop\n") == last


def test_the_program_imports_nothing_large_before_it_handles_one() -> None:
    code = (
        "import sys\n"
        "import tensorfold.__main__\n"
        "assert not {'numpy', 'rich', 'jax', 'tensorfold.cli'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
