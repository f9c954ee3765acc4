"""Several models on one machine: what each needs while it is loaded, and how large its cache may be.

Headers tell before anything is loaded. A cache without a size of its own is what fits beside the weights in an even
share of the budget; where the weights alone exceed the share, in the whole of it, and others have to make room.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import IO

from octavo.config import EngineConfig
from octavo.engine.executor import ProgressHook
from octavo.engine.streams import AsyncLLM
from octavo.errors import ConfigError, ResourceError, UsageError
from octavo.runner import machine
from octavo.runner.capacity import CACHE_SHARE, Demand, num_snapshots, size, usable_blocks
from octavo.runner.runner import Runner
from octavo.server.models import ALIAS, Models
from octavo.server.port import TextEngine
from octavo.server.seat import ServedModel

BUDGET_SHARE = 0.8  # of the memory that is free at the start, where no budget is given
PROCESS_BYTES = 160 << 20  # of an engine beside weights and cache: interpreter, libraries, the values of a step

Open = Callable[[EngineConfig, ProgressHook], TextEngine]


def open_process(config: EngineConfig, progress: ProgressHook, turns: IO[bytes] | None = None) -> TextEngine:
    return AsyncLLM(config, process=True, progress=progress, turns=turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """aliases: name -> model. Sizes in bytes, times in seconds; None: no bound, never."""

    aliases: Mapping[str, str]
    memory_budget: int | None = None
    idle_unload: float | None = None
    load_wait: float = 60.0

    def __post_init__(self) -> None:
        for name in ("idle_unload", "load_wait"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e9:
                raise UsageError(f"{name} must be above 0 seconds, not {value:g}", param=name)

    def models(self, configs: Sequence[EngineConfig], open_one: Open | None = None) -> Models:
        """Nothing is loaded yet. Raises ConfigError for names that are there twice, ResourceError for a model that can
        never fit the budget, and what its headers are refused for."""
        names = [name_of(config) for config in configs]
        self._check_names(names)
        budget = self.memory_budget
        if budget is None and len(configs) > 1:
            budget = int(BUDGET_SHARE * machine.memory()[1])
        open_one = open_one or partial(open_process, turns=_turns(configs))
        served = [
            ServedModel(name, partial(open_one, config))
            if budget is None
            else _counted(name, config, budget, len(configs), open_one)
            for name, config in zip(names, configs, strict=True)
        ]
        return Models(
            served,
            aliases=self.aliases,
            budget=budget,
            idle_seconds=self.idle_unload,
            wait_seconds=self.load_wait,
        )

    def _check_names(self, names: Sequence[str]) -> None:
        seen: set[str] = set()
        for name in (*names, *self.aliases, *((ALIAS,) if len(names) > 1 else ())):
            if name in seen:
                given = "names the first model" if name == ALIAS else "is given twice"
                raise ConfigError(f"the name {name!r} {given}: choose another (served-model-name)", param="model")
            seen.add(name)
        for alias, model in self.aliases.items():
            if model not in names:
                raise ConfigError(
                    f"the alias {alias!r} stands for {model!r}; served: {', '.join(names)}", param="alias"
                )


def _turns(configs: Sequence[EngineConfig]) -> IO[bytes] | None:
    """Where the threads of all are more than the cores, engines take turns."""
    cores = machine.topology().threads
    wanted = sum(config.threads or cores for config in configs)
    return tempfile.TemporaryFile() if len(configs) > 1 and wanted > cores else None


def name_of(config: EngineConfig) -> str:
    return config.served_model_name or config.model


def _counted(name: str, config: EngineConfig, budget: int, models: int, open_one: Open) -> ServedModel:
    """With a cache of a certain size. Raises ResourceError."""
    read = Runner.demand(config)
    weights = read.weights_bytes + PROCESS_BYTES
    part = budget // models
    demand = replace(read, weights_bytes=weights, memory_free=part if weights < part else budget)
    if weights >= budget:
        raise ResourceError(f"{name}: weights and process take {size(weights)} of a --memory-budget of {size(budget)}")
    if config.num_blocks is None and config.kv_memory is None:
        config = replace(config, kv_memory=int(CACHE_SHARE * demand.spare))
    else:
        demand = replace(demand, memory_free=budget)
    try:
        blocks = usable_blocks(demand, kv_memory=config.kv_memory, num_blocks=config.num_blocks)
    except ResourceError as error:
        raise ResourceError(f"{name}: within a --memory-budget of {size(budget)}, {error.message}") from None
    need = weights + (blocks + 1) * demand.block_bytes + _state_bytes(config, demand)
    context = min(demand.max_model_len, blocks * demand.block_tokens)
    return ServedModel(name, partial(open_one, config), need, context)


def _state_bytes(config: EngineConfig, demand: Demand) -> int:
    snapshots = num_snapshots(demand, kv_memory=None if config.num_blocks is not None else config.kv_memory)
    return demand.max_num_seqs * demand.slot_bytes + snapshots * demand.snapshot_bytes
