"""A loaded model with a scheduler before it: what a loop turns, wherever the engine lives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo.config import EngineConfig
from octavo.drafters.ahead import AheadDrafter
from octavo.drafters.kinds import Target, drafter_for
from octavo.drafters.port import Drafter
from octavo.engine.port import EngineStats, ModelInfo
from octavo.engine.vocabulary import load_tokenizer
from octavo.errors import UsageError
from octavo.grammar.structures import Structures
from octavo.policy.journal import JournalScheduler
from octavo.policy.kv import KVLedger
from octavo.policy.scheduler import Scheduler, SchedulerLimits
from octavo.runner.runner import Loaded, Runner
from octavo.runner.source import Progress

SNAPSHOT_EVERY = 1024  # tokens from one regular snapshot of recurrent state to the next


@dataclass(frozen=True, slots=True)
class EngineParts:
    runner: Runner
    scheduler: Scheduler
    info: ModelInfo
    structures: Structures

    def stats(self) -> EngineStats:
        """Read in the loop's thread, between steps. Blocks are summed over the KV groups."""
        scheduler, counted = self.scheduler, self.scheduler.stats
        pools = scheduler.ledger.pools
        return EngineStats(
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            blocks_total=sum(pool.usable for pool in pools),
            blocks_free=sum(len(pool.free) for pool in pools),
            blocks_cached=sum(len(pool.idle) for pool in pools),
            steps=counted.steps,
            prompt_tokens=counted.prompt_tokens,
            output_tokens=counted.output_tokens,
            cached_tokens=counted.cached_tokens,
            preemptions=counted.preemptions,
            masks=self.runner.masks.count,
            mask_seconds=self.runner.masks.seconds,
            drafts=counted.drafts_accepted + counted.drafts_rejected,
            drafts_accepted=counted.drafts_accepted,
            draft_steps=counted.draft_steps,
            accepted_at=tuple(counted.accepted_at),
        )


def open_engine(
    config: EngineConfig, drafter: Drafter | None, progress: Progress, structures: Structures | None = None
) -> EngineParts:
    """Loads the model, sizes everything. drafter: None for the one that the configuration names. progress: (bytes of
    weights read, of all). structures: the face's."""
    shared = structures or Structures(lambda: load_tokenizer(config.model))

    def draft(target: Target) -> Drafter:
        return AheadDrafter(shared, drafter_for(config.speculate, target) if drafter is None else drafter)

    runner = Runner.open(config, draft, progress, shared)
    loaded = runner.loaded
    return EngineParts(runner, _scheduler(config, loaded), _info(config, loaded), shared)


def _scheduler(config: EngineConfig, loaded: Loaded) -> Scheduler:
    """Raises UsageError for a journal that cannot be written."""
    ledger = KVLedger(
        loaded.groups,
        loaded.limits.num_blocks,
        config.block_tokens,
        numerics=loaded.numerics,
        model=loaded.content_id,
        enable_prefix_caching=config.enable_prefix_caching,
        hit_backoff=loaded.hit_backoff,
        lookahead=loaded.lookahead,
        num_snapshots=max(loaded.limits.num_snapshots, 1),
        snapshot_every=SNAPSHOT_EVERY,
    )
    limits = SchedulerLimits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_logit_rows=config.max_logit_rows,
        max_model_len=loaded.limits.max_model_len,
        plans_outstanding=config.plans_outstanding,
    )
    if config.journal is None:
        return Scheduler(limits, ledger)
    try:
        return JournalScheduler(limits, ledger, Path(config.journal), SNAPSHOT_EVERY)
    except OSError as error:
        raise UsageError(f"journal {config.journal}: {error.strerror}", param="journal") from None


def _info(config: EngineConfig, loaded: Loaded) -> ModelInfo:
    return ModelInfo(
        name=config.served_model_name or config.model,
        vocab_size=loaded.vocab_size,
        max_model_len=loaded.limits.max_model_len,
        num_blocks=loaded.limits.num_blocks - 1,
        block_tokens=loaded.limits.block_tokens,
        kv_bytes_per_token=loaded.kv_bytes_per_token,
        weights_bytes=loaded.weights_bytes,
        numerics=loaded.numerics,
        isa=loaded.isa,
        threads=loaded.threads,
        load_seconds=loaded.load_seconds,
        verify=config.verify,
        task="generate" if loaded.pooling is None else "embed",
        step_tokens=config.max_num_batched_tokens if loaded.pooling is not None and loaded.pooling.whole else 0,
        notes=loaded.notes,
    )
