"""The sandbox runs programs, and holds the ones that misbehave."""

import os
import time

import pytest

from redraft.skills.sandbox import Limits, run_function

QUICK = Limits(wall_seconds=3.0, cpu_seconds=1)


def test_calls_share_one_process_and_keep_their_types():
    outcome = run_function(
        "import math\ndef f(x, y):\n    return [x, y, x == y, math.sqrt(4)]", "f", [[1, 1], ["a", 2]]
    )
    assert outcome.error is None
    assert outcome.values == [[1, 1, True, 2.0], ["a", 2, False, 2.0]]


def test_prints_do_not_reach_the_report():
    outcome = run_function("print('{}')\ndef f(x):\n    print(x)\n    return x", "f", [[3]])
    assert outcome.values == [3]


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("def f(:", "SyntaxError"),
        ("def g(x):\n    return x", "KeyError"),
        ("def f(x):\n    return x / 0", "ZeroDivisionError"),
        ("def f(x):\n    return {1, 2}", "TypeError"),
        ("def f(x):\n    return float('nan')", "ValueError"),
        ("raise SystemExit", "SystemExit"),
        ("import os\nos._exit(0)", "without a report"),
        ("def f(x):\n    return 'x' * 100_000", "bytes of output"),
        ("def f(x):\n    return 'x' * 10**9", "MemoryError"),
        ("def f(x):\n    return f(x)", "RecursionError"),
        ("import os\ndef f(x):\n    return os.fork()", "os.fork"),
        ("import os\ndef f(x):\n    return os.system('true')", "os.system"),
        ("import os\ndef f(x):\n    os.setsid()\n    os.kill(os.getppid(), 9)", "Error"),
        ("import _socket\ndef f(x):\n    return str(_socket.socket())", "socket"),
        ("def f(x):\n    return open('out', 'w').write('x')", "Error"),
        ("import os\ndef f(x):\n    os.write(3, b'[' * 50_000)\n    os._exit(0)", "without a report"),
    ],
)
def test_a_program_that_fails_is_an_error(source: str, error: str):
    outcome = run_function(source, "f", [[1]], QUICK)
    assert outcome.values is None
    assert error in (outcome.error or "")


@pytest.mark.parametrize("source", ["while True: pass", "import time\ntime.sleep(60)"])
def test_a_program_that_does_not_end_is_ended(source: str):
    start = time.monotonic()
    outcome = run_function(source, "f", [[1]], Limits(wall_seconds=1.0, cpu_seconds=1))
    assert outcome.values is None
    assert time.monotonic() - start < 10


def test_a_forged_report_of_the_wrong_length_is_an_error():
    source = (
        "import os\nfor fd in range(3, 9):\n    try:\n        os.write(fd, b'{\"values\": [1]}')\n    except OSError:\n"
    )
    assert run_function(source + "        pass\nos._exit(0)", "f", [[1], [2]]).values is None


def test_the_program_sees_no_environment_and_an_empty_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REDRAFT_TEST_VALUE", "secret")
    source = "import os\ndef f():\n    return ['REDRAFT_TEST_VALUE' in os.environ, os.getcwd()]"
    values = run_function(source, "f", [[]]).values
    assert values is not None
    seen, folder = values[0]
    assert not seen
    assert not os.path.exists(folder)
