import io
import re
import signal
import threading

import pytest

from trimtab.train import terminal
from trimtab.train.terminal import Progress, ctrl_c


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [100.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    return now


def test_a_plain_line_every_few_seconds_with_rate_and_time_left(clock, capsys):
    with Progress(100, 1000) as show:
        for step in range(101, 200):
            clock[0] += 0.25
            show(step, {"step": step, "loss": step / 1000} if step % 10 == 0 else {})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "step 120 of 1000 (12%), 4 steps/s, 3:40 left, loss 0.12"
    assert len(lines) == 4


def test_a_short_run_says_nothing_and_stdout_is_never_used(clock, capsys):
    with Progress(0, 10) as show:
        for step in range(1, 11):
            clock[0] += 0.1
            show(step, {})
    assert capsys.readouterr() == ("", "")


def test_a_loss_that_is_not_there(clock, capsys):
    with Progress(0, 10, every=1) as show:
        for step in (1, 2):
            clock[0] += 4000
            show(step, {"loss": None, "accuracy": 1.0})
    assert capsys.readouterr().err.splitlines()[1] == "step 2 of 10 (20%), 0.00025 steps/s, 8:53:20 left"


def test_a_bar_on_a_terminal(monkeypatch):
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with Progress(0, 20) as show:
        for step in range(1, 21):
            show(step, {"loss": 0.25})
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert re.search(r"20/20 .*steps/s, 0:00 left, loss 0.25", text)
    assert "step 20 of 20" not in text


def test_a_callback_takes_the_place_of_both(clock, capsys):
    seen = []
    with Progress(0, 10, lambda *args: seen.append(args)) as show:
        for step in range(1, 11):
            clock[0] += 60
            show(step, {"step": step} if step == 4 else {})
    assert seen == [(4, 10, {"step": 4})]
    assert capsys.readouterr() == ("", "")


def test_first_ctrl_c_asks_and_the_second_stops():
    with ctrl_c() as stop:
        assert not stop.is_set()
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_thread_may_train_too():
    seen = []

    def other():
        with ctrl_c() as stop:
            seen.append((stop.is_set(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [(False, signal.default_int_handler)]


class Gone(io.StringIO):
    """What is left of a stream whose reader has gone."""

    def write(self, text):
        raise BrokenPipeError

    flush = write


@pytest.mark.parametrize("stream", [None, Gone(), "closed"])
def test_nobody_reading_ends_no_training(clock, monkeypatch, stream):
    if stream == "closed":
        stream = io.StringIO()
        stream.close()
    monkeypatch.setattr("sys.stderr", stream)
    with Progress(0, 3) as show:
        for step in (1, 2, 3):
            clock[0] += 10
            show(step, {})


def test_no_stderr_does_not_mean_stdout(clock, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr", None)
    with Progress(0, 1) as show:
        clock[0] += 10
        show(1, {})
    assert capsys.readouterr().out == ""
