"""The native executor with an instruction-set class and a thread count of the test's choosing."""

from octavo.backends import executor_for


class Forced:
    """An executor as stepping.Stepper takes it: sessions run `isa` on `threads` threads and store K and V as `kv`."""

    def __init__(self, isa: str, threads: int = 1, kv: str = "auto") -> None:
        self.inner = executor_for("native")
        self.isa, self.threads, self.kv = isa, threads, kv

    def lower(self, program, kinds, **options):
        return self.inner.lower(program, kinds, kv_dtype=self.kv, **options)

    def open(self, programs, weights, limits, *, threads):
        return self.inner.open(programs, weights, limits, threads=self.threads, isa=self.isa)
