"""A head's folder that holds such a module, trained for a target whose checkpoint has none (architectures "MTP"): a
Llama's layer behind the target's last, with a head of its own, over a reduced vocabulary if it has one.

Keys, behind model.layers.{n}.: enorm, hnorm, eh_proj, a Llama's layer, shared_head.norm, shared_head.head.
"""

from __future__ import annotations

from octavo.drafters.folder import SHIFTS, HeadFolder
from octavo.drafters.mtp import MtpDrafter, ends_of
from octavo.drafters.shadow import Shadows
from octavo.drafters.target import Target
from octavo.errors import in_file
from octavo.fields import unsupported
from octavo.model_config import ModelConfig
from octavo.models import layer as parts
from octavo.models.draft import Module, programs
from octavo.models.rope import frequencies
from octavo.program.builder import Builder
from octavo.program.ir import Weight

THETA = 10_000.0  # of heads that state none


def mtp_head(folder: HeadFolder, target: Target, *, adaptive: bool = True) -> MtpDrafter:
    """Raises ConfigError, BadFileError for what is no such head of this target."""
    with in_file(folder.path):
        config = ModelConfig.from_mapping(folder.checkpoint.config)
        if folder.fields.get("chain_hidden_post_norm") is False:
            raise unsupported("chain_hidden_post_norm false: drafts go on from the normed state", "architectures")
        inv_freq, factor = frequencies(
            config.rope, config.head_dim, config.max_position, THETA, target.config.max_model_len
        )
    folder.fits("hidden states", config.hidden_size, target.model.hidden_size)
    folder.fits("layers", config.num_layers, target.model.num_layers)
    place, d = config.num_layers, config.hidden_size
    at = f"model.layers.{place}."
    norm = parts.Norm(hidden=d, eps=config.rms_eps)

    def write(b: Builder, x: str, keys: str | None) -> tuple[str, str | None]:
        angles = b.rope_angles("mtp.angles", "position", inv_freq=inv_freq, factor=factor)
        attention = parts.Attention(
            hidden=d,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            width=config.head_dim,
            scale=config.head_dim**-0.5,
            qkv_bias=bool(config.attention_bias),
            o_bias=bool(config.attention_bias),
            angles=angles,
            rotary=2 * len(inv_freq),
        )
        h = norm.write(b, place, "h", x, hf="input_layernorm", gguf="", dtype="act")
        x = b.add("mtp.x1", x, parts.attention(b, attention, place, h))
        h = norm.write(b, place, "h2", x, hf="post_attention_layernorm", gguf="ffn_norm", dtype="act")
        width, act = config.intermediate_size, config.activation or "silu"
        return b.add("mtp.x2", x, parts.mlp(b, place, h, hidden=d, width=width, act=act)), keys

    def named(name: str) -> tuple[str, str]:
        return f"{at}{name}.weight", ""

    head = named("shared_head.head")
    count = folder.shape(head[0])[0]
    ends = ends_of(target, Weight("mtp.head", (count, d), {"hf": head[0], "gguf": head[1]}))
    module = Module(
        config.rms_eps,
        "llama",
        named("enorm"),
        named("hnorm"),
        named("eh_proj"),
        named("shared_head.norm"),
        write,
    )
    written = programs([module], ends)
    folder.join(written.values(), target.program.weights, (f"{at}embed_tokens.",))
    ids = folder.target_ids(count, target.model.vocab_size)
    told = target.config
    kept = ids if folder.has(SHIFTS) else None
    shadows = Shadows(count, target.model.vocab_size, told.threads or 1, told.verify, kept)
    return MtpDrafter(written, ends.residual, shadows, target.config, folder.tensor, adaptive=adaptive)
