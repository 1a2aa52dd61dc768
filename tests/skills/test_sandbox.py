"""The sandbox runs programs, and holds the ones that misbehave."""

import os
import socket
import time
from pathlib import Path

import pytest

from redraft.skills.sandbox import Limits, network_namespace, run_function

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


def children() -> set[str]:
    """Processes that run the sandbox's script."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"_sandbox_child" in path.read_bytes():
                found.add(path.parent.name)
        except OSError:
            continue  # it has ended
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "fork",
    ["os.fork()", "__import__('_posixsubprocess').fork_exec(*range(21))", "os.posix_spawn('/bin/true', ['true'], {})"],
)
def test_a_fork_bomb_makes_no_process(fork: str) -> None:
    before = children()
    source = f"""
import os
def f():
    for _ in range(10000):
        try:
            {fork}
        except BaseException as error:
            last = error
    raise last
"""
    outcome = run_function(source, "f", [[]], Limits(wall_seconds=20.0, cpu_seconds=5))
    assert outcome.values is None
    assert children() <= before


def test_a_program_reaches_no_network() -> None:
    """Not even a server on this machine, and not by going round the hook: the namespace has no interface that is up."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0.1)
        port = server.getsockname()[1]
        source = f"""
import _socket
def f():
    _socket.socket(2, 1).connect(("127.0.0.1", {port}))
    return 1
"""
        assert run_function(source, "f", [[]], QUICK).values is None
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.skipif(not network_namespace(), reason="this system makes no network namespaces")
def test_the_network_namespace_has_no_interface_but_a_dead_loopback() -> None:
    source = (
        "def f():\n    return [line.split(':')[0].strip() for line in open('/proc/net/dev').read().splitlines()[2:]]"
    )
    assert run_function(source, "f", [[]], Limits()).values == [["lo"]]


def test_nothing_is_written_outside(tmp_path: Path) -> None:
    target = tmp_path / "written"
    tmp_path.chmod(0o777)
    for how in (f"open({str(target)!r}, 'w')", f"__import__('os').mkdir({str(target)!r})"):
        assert run_function(f"def f():\n    {how}\n    return 1", "f", [[]], QUICK).values is None
        assert not target.exists()


def test_signals_do_not_reach_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    caught: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: caught.append(number))
    try:
        for call in (f"os.kill({os.getpid()}, 10)", f"os.killpg({os.getpgid(0)}, 10)"):
            assert run_function(f"import os\ndef f():\n    {call}\n    return 1", "f", [[]], QUICK).values is None
        time.sleep(0)  # a pending signal is handled between two bytecodes
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caught == []


@pytest.mark.parametrize("where", ["1", "3"])
def test_100_megabytes_of_output_are_not_read(where: str) -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    source = (
        "import os\ndef f():\n    for _ in range(100):\n"
        f"        os.write({where}, b'x' * 1_000_000)\n    return 'y' * 100_000"
    )
    outcome = run_function(source, "f", [[]], Limits(wall_seconds=20.0))
    assert outcome.values is None and "output" in (outcome.error or "")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kilobytes
