"""How large the KV cache is, and what fits in it: arithmetic in bytes and tokens, shown to users as one table."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import ResourceError

CACHE_SHARE = 0.6  # of the memory that is free once the weights are in
SNAPSHOTS_PER_REQUEST, SNAPSHOT_SHARE = 2, 0.25  # of recurrent state: how many, in how much of the cache's memory
SHORT, MIDDLE = 1024, 4096  # contexts that the table speaks of, beside the full one


@dataclass(frozen=True, slots=True)
class Demand:
    """What sizes the cache. Bytes; memory_free is what is left before the weights are loaded. slot_bytes,
    snapshot_bytes: recurrent state of a request, whatever its length, and of a snapshot; 0 without any."""

    block_bytes: int
    block_tokens: int
    weights_bytes: int
    memory_free: int
    max_num_seqs: int
    max_model_len: int
    slot_bytes: int = 0
    snapshot_bytes: int = 0

    @property
    def spare(self) -> int:
        return max(0, self.memory_free - self.weights_bytes)


def num_snapshots(demand: Demand, *, kv_memory: int | None = None) -> int:
    """Snapshots of recurrent state; none where there is no state."""
    if not demand.snapshot_bytes:
        return 0
    memory = int(CACHE_SHARE * demand.spare) if kv_memory is None else kv_memory
    most = SNAPSHOTS_PER_REQUEST * demand.max_num_seqs
    return max(1, min(most, int(SNAPSHOT_SHARE * memory) // demand.snapshot_bytes))


def usable_blocks(demand: Demand, *, kv_memory: int | None = None, num_blocks: int | None = None) -> int:
    """Blocks for tokens (the null block comes on top). num_blocks wins over kv_memory, which wins over free memory.
    Recurrent state and its snapshots are paid from the same memory.

    Without num_blocks never more than max_num_seqs requests of max_model_len could use. Raises ResourceError when not
    one block fits, or when more is asked for than is free.
    """
    per_request = -(-demand.max_model_len // demand.block_tokens)
    spare = demand.spare
    snapshots = num_snapshots(demand, kv_memory=None if num_blocks is not None else kv_memory)
    state = demand.max_num_seqs * demand.slot_bytes + snapshots * demand.snapshot_bytes
    if num_blocks is not None:
        kv_memory = (num_blocks + 1) * demand.block_bytes + state
    if kv_memory is not None and kv_memory > spare:
        raise ResourceError(
            f"no room for the KV cache: {size(kv_memory)} are asked for, {size(spare)} are free beside "
            f"{size(demand.weights_bytes)} of weights: lower {'--kv-memory' if num_blocks is None else '--num-blocks'}"
        )
    if num_blocks is not None:
        return num_blocks
    memory = kv_memory if kv_memory is not None else int(CACHE_SHARE * spare)
    if memory < state:
        raise ResourceError(
            f"no room for recurrent state: {demand.max_num_seqs} requests and {snapshots} snapshots take {size(state)} "
            f"and the cache has {size(memory)}: lower --max-num-seqs or raise --kv-memory"
        )
    memory -= state
    blocks = min(memory // demand.block_bytes - 1, demand.max_num_seqs * per_request)
    if blocks < 1:
        raise ResourceError(
            f"no room for the KV cache: a block takes {demand.block_bytes} bytes, {memory} are left to it beside "
            f"{demand.weights_bytes} of weights: raise --kv-memory or take a smaller model"
        )
    return blocks


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity table. Bytes and tokens; `requests`: context length -> requests that can run at once."""

    weights_bytes: int
    kv_bytes_per_token: int
    kv_tokens: int
    requests: dict[int, int]

    @classmethod
    def of(
        cls, *, weights_bytes: int, kv_bytes_per_token: int, num_blocks: int, block_tokens: int, max_model_len: int
    ) -> Capacity:
        contexts = sorted({min(context, max_model_len) for context in (SHORT, MIDDLE, max_model_len)})
        requests = {context: num_blocks // -(-context // block_tokens) for context in contexts}
        return cls(weights_bytes, kv_bytes_per_token, num_blocks * block_tokens, requests)

    def rows(self) -> list[tuple[str, str]]:
        """(what, how much), ready to print."""
        table = [
            ("weights", size(self.weights_bytes)),
            ("KV bytes per token", f"{self.kv_bytes_per_token:,}"),
            ("tokens that fit", f"{self.kv_tokens:,}"),
        ]
        return [*table, *((f"requests at {context:,} tokens", f"{n:,}") for context, n in self.requests.items())]


def size(amount: int) -> str:
    """Bytes for people, in powers of 1024."""
    value, unit = float(amount), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{amount} B" if unit == "B" else f"{value:.1f} {unit}"
