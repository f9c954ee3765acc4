"""Which executors this build has, how to ask an engine, and what one at rest must show."""

import threading
import time
from importlib.util import find_spec

from octavo import SamplingParams

EXECUTORS = ["reference"] if find_spec("torch") else []
if find_spec("octavo._native") and find_spec("octavo.backends.native.executor"):
    EXECUTORS.append("native")


def settle(llm):
    """Waits until the engine has heard of late stops and closed streams; then everything is free."""
    while llm.stats().running or llm.stats().waiting:
        time.sleep(0.002)
    assert_all_free(llm.stats())


def assert_all_free(stats):
    """After idle: no request, every block free or cached."""
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total


def ask(llm, prompt, **params):
    """The one answer to one prompt, greedy unless said."""
    [output] = llm.generate(prompt, SamplingParams(**{"temperature": 0, "max_tokens": 12, **params}), use_tqdm=False)
    return output.outputs[0]


def ids(outputs):
    """The token ids of every choice of every output."""
    return [choice.token_ids for output in outputs for choice in output.outputs]


class Brake:
    """Lets an AsyncLLM's engine thread take `steps` steps and no more until it is released."""

    def __init__(self, llm, steps):
        self._runner = llm._engine._loop._runner
        self._finish = self._runner.finish
        self._left = threading.Semaphore(steps)
        self._runner.finish = self
        self.held = False  # the engine stands

    def __call__(self):
        self.held = not self._left.acquire(blocking=False)
        if self.held:
            self._left.acquire()
        return self._finish()

    def allow(self, steps):
        self._left.release(steps)

    def release(self):
        self._runner.finish = self._finish
        self._left.release(10**6)
