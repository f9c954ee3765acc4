"""The native executor with an instruction-set class and a thread count of the test's choosing."""

from octavo.backends import executor_for


class Forced:
    """An executor as stepping.Stepper takes it, whose sessions run `isa` on `threads` threads."""

    def __init__(self, isa: str, threads: int = 1) -> None:
        self.inner = executor_for("native")
        self.isa, self.threads = isa, threads
        self.lower = self.inner.lower

    def open(self, programs, weights, limits, *, threads):
        return self.inner.open(programs, weights, limits, threads=self.threads, isa=self.isa)
