"""Short forms of `make soak` and `make kill`: twice the load that fits, and the end of any process at any moment."""

import random

import pytest
from chain_model import write_chain
from fake_server import FakeServer
from killing import LIMIT, Killed, kills
from soaking import measured_rate, soak


@pytest.fixture
def start(tmp_path):
    folder, started = write_chain(tmp_path / "chain"), []

    def begin(port=None, **options):
        options.setdefault("serve", {})["admin_socket"] = str(tmp_path / "operator")
        started.append(FakeServer(folder, tmp_path / f"log{len(started)}", port=port, **options))
        return started[-1].announced()

    yield begin
    for server in started:
        server.end()


def test_twice_the_load_that_fits(start):
    server = start(
        machine={"step_seconds": 0.003},
        engine={"max_num_seqs": 8, "num_blocks": 512},
        serve={"max_queued_requests": 16},
    )
    rate = measured_rate(server, concurrency=16, seconds=1.5)
    found = soak(server, rate=2 * rate, seconds=5)
    assert found.faults == 0 and set(found.codes) <= {200, 429, 503}, found.codes
    assert found.codes[200] > 0.4 * rate * 5 and found.codes[429] > 0
    assert found.held == 0
    assert found.memory[1] - found.memory[0] < 24 << 20, found
    waits = 16 / rate  # what waits before a request is at most the queue
    assert found.ttft(0.5) < 20 * waits
    assert server.quit() == 0


def test_a_death_of_any_process_at_any_moment(start):
    killed = Killed()
    kills(lambda port=None: start(port, machine={"step_seconds": 0.002}), range(6), random.Random(7), killed)
    assert killed.faults == []
    assert all(len(ends) == 2 for ends in killed.ends.values())
    assert max(max(ends) for ends in killed.ends.values()) < LIMIT
