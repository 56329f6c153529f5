"""A short run of the fuzzer: nothing ends, fails, gets stuck or is held; and the fuzzer detects each of these."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.fuzz.calls import Call
from tests.fuzz.run import fuzz, still_serves
from tests.fuzz.site import Site
from tests.fuzz.target import Target, Violation

pytestmark = pytest.mark.server


@pytest.fixture
def target() -> Iterator[Target]:
    site = Site()
    target = Target(site)
    yield target
    target.close()
    site.close()


def test_a_thousand_malformed_inputs_do_no_harm(target: Target) -> None:
    violations = fuzz(target, 1000, seed_=1)
    assert [str(violation) for violation in violations if violation.kind != "held"] == []  # a matter of time
    assert still_serves(target.site)
    assert target.dead_letters > 100
    assert {"200", "400", "404"} <= set(target.answers)


def test_an_unknown_wake_up_with_a_workers_name_does_not_drain_it(target: Target) -> None:
    target.write([("XADD", target.site.keys.control, "*", "type", "unknown", "target", "WORKER")])
    assert still_serves(target.site)


def test_faults_are_detected(target: Target) -> None:
    body = b'{"model":"orca-demo","prompt":"Count from 1 to 3","max_tokens":3}'
    good = Call(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    target.call([good])
    assert target.answers == {"200": 1}
    target.site.worker.kill()
    with pytest.raises(Violation, match=r"^crash: worker ended"):
        target.call([Call(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")])


def test_a_paused_machine_holds_no_process(target: Target) -> None:
    """The gateway is stopped: the probe waits for a long time, but the process has not computed meanwhile."""
    pid = target.site.gateway.pid
    target.watched(lambda: None, "nothing")
    os.kill(pid, signal.SIGSTOP)
    try:
        assert target._probes["gateway"].longest_held_s(timeout_s=0.5) == float("inf")
    finally:
        os.kill(pid, signal.SIGCONT)
    target.watched(lambda: None, "a machine that stands still is no fault of an input")
    assert target.longest_wait_s > 0.4
