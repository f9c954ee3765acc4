"""WaitingQueue by itself: priority, turns of tenants, arrival, the preempted, and that nobody starves."""

from octavo.policy.queue import PATIENCE, WaitingQueue
from octavo.request import Request, SamplingParams


def request(name, tenant="", priority=0, arrival=0.0):
    return Request(name, (1,), SamplingParams(), tenant=tenant, priority=priority, arrival=arrival)


def queue_of(*requests):
    queue = WaitingQueue()
    for each in requests:
        queue.push(each)
    return queue


def drain(queue):
    """Ids in the order in which they are taken one at a time."""
    ids = []
    while len(queue):
        first = next(queue.order())
        queue.take(first)
        ids.append(first.id)
    return ids


def test_earlier_arrivals_first_whatever_the_order_of_coming():
    assert drain(queue_of(request("b", arrival=2), request("a", arrival=1), request("c", arrival=2))) == ["a", "b", "c"]


def test_smaller_priority_numbers_first():
    assert drain(queue_of(request("low", priority=3), request("high", priority=-1), request("mid"))) == [
        "high",
        "mid",
        "low",
    ]


def test_tenants_take_turns():
    queue = queue_of(*(request(f"a{i}", "a", arrival=i) for i in range(3)), request("b", "b", arrival=9))
    assert [each.id for each in queue.order()] == ["a0", "b", "a1", "a2"]
    assert drain(queue) == ["a0", "b", "a1", "a2"]


def test_a_tenant_that_was_served_goes_to_the_end_of_the_ring():
    first, *rest = (request(name, name[0], arrival=i) for i, name in enumerate(("a0", "a1", "b0", "c0")))
    queue = queue_of(first, *rest)
    queue.take(first)
    queue.push(request("b1", "b", arrival=9))
    assert [each.id for each in queue.order()] == ["b0", "c0", "a1", "b1"]


def test_the_preempted_go_before_newcomers_of_their_class_only_and_by_arrival():
    queue = queue_of(request("new", "a", arrival=0), request("high", priority=-1, arrival=9))
    queue.push_front(request("second", "b", arrival=5))
    queue.push_front(request("first", "b", arrival=4))
    assert drain(queue) == ["high", "first", "second", "new"]


def test_a_class_that_was_passed_over_gets_its_turn():
    queue = queue_of(request("low", priority=1), request("lower", priority=2))
    served = []
    for i in range(2 * PATIENCE + 4):
        queue.push(request(f"high{i}", arrival=i))
        first = next(queue.order())
        queue.take(first)
        served.append(first.id)
    assert served.index("lower") == PATIENCE
    assert served.index("low") == PATIENCE + 1


def test_a_turn_out_of_patience_is_yielded_once():
    queue = queue_of(request("low", priority=1))
    for i in range(PATIENCE):
        queue.push(request(f"x{i}"))
        queue.take(next(queue.order()))
    queue.push(request("high"))
    assert [each.id for each in queue.order()] == ["low", "high"]


def test_patience_starts_anew_after_a_turn():
    queue = queue_of(*(request(f"low{i}", priority=1, arrival=i) for i in range(3)))
    served = []
    for i in range(3 * PATIENCE):
        queue.push(request(f"high{i}", arrival=i))
        first = next(queue.order())
        queue.take(first)
        served.append(first.id)
    assert [served.index(f"low{i}") for i in range(2)] == [PATIENCE, 2 * PATIENCE + 1]
    assert "low2" not in served


def test_removing_leaves_no_trace():
    a, b = request("a", "x"), request("b", "y")
    queue = queue_of(a)
    queue.push_front(b)
    assert "a" in queue and "b" in queue and len(queue) == 2
    queue.remove(b)
    assert "b" not in queue and [each.id for each in queue.order()] == ["a"]
    queue.remove(a)
    assert len(queue) == 0 and list(queue.order()) == []
    queue.push(b)
    queue.push_front(a)
    assert [each.id for each in queue.order()] == ["a", "b"]
    queue.remove(b)
    queue.remove(a)
    assert len(queue) == 0 and not queue._classes
