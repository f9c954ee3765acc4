"""EAGLE heads against the formulas of their papers, their caches against ones that nothing disturbed; refusals.

The twin computes a whole sequence at once, in torch: e the embedding of the next token, f or g the feature.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from exactness import eagle_heads, heads
from exactness.harness import House, prompts, request
from safetensors.numpy import save_file

from octavo.drafters import eagle
from octavo.drafters.eagle import Branching, EagleDrafter
from octavo.drafters.eagle_program import LOGITS, STATE
from octavo.drafters.folder import HeadFolder
from octavo.drafters.heads import head_drafter
from octavo.drafters.port import Proposal
from octavo.drafters.tree import TreeWorth
from octavo.errors import BadFileError, ConfigError, OctavoError
from octavo.request import Request, SamplingParams

torch = pytest.importorskip("torch")

CONFIG, WIDTH, VOCAB = eagle_heads.CONFIG, eagle_heads.WIDTH, eagle_heads.VOCAB
HEADS, KV_HEADS, SIZE, INNER, DRAFT_VOCAB = 6, 2, 20, 100, 150
KEPT = np.sort(np.random.default_rng(3).choice(VOCAB, DRAFT_VOCAB, replace=False))
BUSHY = Branching(3, 3, 8)
KINDS = ("eagle1", "eagle3", "eagle3 reduced")


def random_head(kind):
    """(config, tensors): every one of them matters."""
    rng = np.random.default_rng(KINDS.index(kind))
    three, reduced = kind != "eagle1", kind == "eagle3 reduced"
    at, eaten = ("layers.0" if kind != "eagle3" else "midlayer"), WIDTH * (2 if three else 1)

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) * 1.3 / columns**0.5).astype(np.float32)

    def norm():
        return (1 + 0.2 * rng.standard_normal(WIDTH)).astype(np.float32)

    tensors = {
        f"{at}.self_attn.q_proj.weight": matrix(HEADS * SIZE, eaten),
        f"{at}.self_attn.k_proj.weight": matrix(KV_HEADS * SIZE, eaten),
        f"{at}.self_attn.v_proj.weight": matrix(KV_HEADS * SIZE, eaten),
        f"{at}.self_attn.o_proj.weight": matrix(WIDTH, HEADS * SIZE),
        f"{at}.mlp.gate_proj.weight": matrix(INNER, WIDTH),
        f"{at}.mlp.up_proj.weight": matrix(INNER, WIDTH),
        f"{at}.mlp.down_proj.weight": matrix(WIDTH, INNER),
        f"{at}.post_attention_layernorm.weight": norm(),
        "fc.weight": matrix(WIDTH, (3 if three else 2) * WIDTH),
    }
    if three:
        ids = KEPT if reduced else np.arange(VOCAB)
        tensors |= {f"{at}.hidden_norm.weight": norm(), f"{at}.input_layernorm.weight": norm(), "norm.weight": norm()}
        tensors |= {"lm_head.weight": matrix(len(ids), WIDTH) * 2}
        if reduced:
            tensors |= {"d2t": ids - np.arange(len(ids)), "t2d": np.isin(np.arange(VOCAB), ids)}
    else:
        tensors["fc.bias"] = rng.standard_normal(WIDTH).astype(np.float32)
    size = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": SIZE, "intermediate_size": INNER}
    more = {"draft_vocab_size": DRAFT_VOCAB} if reduced else {}
    if kind == "eagle3":
        more["eagle_aux_hidden_state_layer_ids"] = [1, 2, 4]
    if reduced:
        more["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}
    return eagle_heads.stated(**{**size, **more}), tensors


TAPS = {"eagle1": ("4.x",), "eagle3": ("1.x", "2.x", "4.x"), "eagle3 reduced": ("1.x", "2.x", "4.x")}


class Twin:
    def __init__(self, kind, tensors, target):
        self.three = kind != "eagle1"
        self.at = "layers.0" if kind != "eagle3" else "midlayer"
        self.ids = KEPT if kind == "eagle3 reduced" else np.arange(VOCAB)
        self.head = {name: torch.from_numpy(np.asarray(array, np.float32)) for name, array in tensors.items()}
        self.target = {name: torch.from_numpy(array) for name, array in target.items()}

    def norm(self, x, weight):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]) * weight

    def own(self, name):
        return self.head[f"{self.at}.{name}.weight"]

    def fuse(self, taps):
        """taps: [S, width of them all]"""
        if self.three:
            return taps @ self.head["fc.weight"].T
        return self.norm(taps, self.target["model.norm.weight"])

    def rotated(self, x):
        """[S, H, d], row s at position s."""
        freq = CONFIG["rope_theta"] ** (-torch.arange(0, SIZE, 2) / SIZE)
        angle = torch.arange(len(x))[:, None, None] * freq
        low, high = x[..., : SIZE // 2], x[..., SIZE // 2 :]
        return torch.cat((low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()), -1)

    def layer(self, tokens, features):
        """(x [S, D], logits [S, Vd])"""
        e = self.target["model.embed_tokens.weight"][tokens]
        if self.three:
            x = features
            h = torch.cat((self.norm(e, self.own("input_layernorm")), self.norm(x, self.own("hidden_norm"))), -1)
        else:
            x = h = torch.cat((e, features), -1) @ self.head["fc.weight"].T + self.head["fc.bias"]
        q, k, v = ((h @ self.own(f"self_attn.{name}_proj").T).reshape(len(h), -1, SIZE) for name in "qkv")
        q, k = self.rotated(q), self.rotated(k).repeat_interleave(HEADS // KV_HEADS, 1)
        scores = torch.einsum("shd,thd->hst", q, k) / SIZE**0.5
        scores = scores.masked_fill(torch.triu(torch.ones(len(h), len(h)), 1) > 0, -torch.inf)
        mixed = torch.einsum("hst,thd->shd", scores.softmax(-1), v.repeat_interleave(HEADS // KV_HEADS, 1))
        x = x + mixed.reshape(len(h), -1) @ self.own("self_attn.o_proj").T
        h = self.norm(x, self.own("post_attention_layernorm"))
        gated = torch.nn.functional.silu(h @ self.own("mlp.gate_proj").T) * (h @ self.own("mlp.up_proj").T)
        x = x + gated @ self.own("mlp.down_proj").T
        if self.three:
            return x, self.norm(x, self.head["norm.weight"]) @ self.head["lm_head.weight"].T
        return x, x @ self.target["lm_head.weight"].T

    def after(self, tokens, features, path):
        """Logits behind a path of drafts that follow `tokens`."""
        x, logits = self.layer(torch.tensor(tokens), features)
        for token in path:
            tokens, features = [*tokens, token], torch.cat((features, x[-1:]))
            x, logits = self.layer(torch.tensor(tokens), features)
        return logits[-1]


class Kept(EagleDrafter):
    """Keeps what the head made of each entry that stayed, from which features, and what grew in each step."""

    quiet = False

    def extend(self, session, rows):
        super().extend(session, rows)
        x, taps = session.view(STATE), [session.view(tap) for tap in self.taps]
        for row in rows:
            known, plan = self._known.get(row.request.id), row.row
            if known is None:
                continue
            firm = len(plan.token_ids) - plan.num_drafts
            for place, offset in enumerate((*range(firm), *row.result.accepted)):
                at = row.request.id, plan.start + place
                self.entries[at] = x[known.begin + offset].copy()
                self.features[at] = np.concatenate([tap[row.begin + offset] for tap in taps])

    def propose(self, session, rows):
        if self.quiet:
            return [Proposal()] * len(rows)
        return super().propose(session, rows)

    def _growths(self, session, rows):
        growths = super()._growths(session, rows)
        self.grown += [
            (growth, growth.request.num_tokens + len(growth.row.result.token_ids)) for growth in growths.values()
        ]
        return growths


def opened(model, folder, branching=BUSHY, *, adaptive=False, kind=Kept, **options):
    target = heads.open_target(model, **options)
    drafter = kind(HeadFolder(folder, target), target, branching, adaptive=adaptive)
    drafter.entries, drafter.features, drafter.grown = {}, {}, []
    return drafter


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return eagle_heads.write_model(tmp_path_factory.mktemp("quiet"))


@pytest.fixture(scope="module", params=KINDS)
def head(request, tmp_path_factory):
    """(kind, tensors, folder)"""
    config, tensors = random_head(request.param)
    return request.param, tensors, eagle_heads.write(tmp_path_factory.mktemp("head"), config, tensors)


def asked(tokens=12, **params):
    return [request(f"r{i}", ids, tokens=tokens, **params) for i, ids in enumerate(prompts(VOCAB, (3, 16, 37)))]


def known(run, requests, name):
    (one,) = (one for one in requests if one.id == name)
    return [*one.prompt_ids, *run.outputs[name]]


EXECUTORS = {"reference": {"executor": "reference", "dtype": "float32"}, "native": {}}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_states_and_drafts_are_those_of_the_formulas(made, head, executor):
    kind, tensors, folder = head
    model, target = made
    options = EXECUTORS[executor]
    drafter = opened(model, folder, **options)
    assert drafter.taps == TAPS[kind]
    house = House(model, drafter=drafter, max_num_batched_tokens=29, threads=1, **options)
    requests = asked()
    run = house.run(requests)
    house.close()
    twin = Twin(kind, tensors, target)
    close = 1e-3 if executor == "reference" else 0.05
    sequences = {}
    for one in requests:
        tokens = known(run, requests, one.id)
        taps = np.stack([drafter.features[one.id, index] for index in range(len(tokens) - 1)])
        features = twin.fuse(torch.from_numpy(taps))
        want = twin.layer(torch.tensor(tokens[1:]), features)[0].numpy()
        got = np.stack([drafter.entries[one.id, index] for index in range(len(tokens) - 1)])
        assert np.sqrt(np.mean((got - want) ** 2)) < close * want.std()
        sequences[one.id] = tokens, features
    assert len(drafter.grown) > 20
    if executor == "reference":
        for growth, length in drafter.grown:
            tokens, features = sequences[growth.request.id]
            check_growth(twin, growth, tokens[:length], features[: length - 1])


def check_growth(twin, growth, tokens, features):
    """Every draft that was run has for children the likeliest tokens behind its path."""
    paths = {-1: ()}
    for number, draft in enumerate(growth.drafts):
        paths[number] = (*paths[draft.parent], draft.token)
    parents = dict.fromkeys(draft.parent for draft in growth.drafts)
    assert len(parents) == 7 or growth.limit < growth.spine.end + 9
    for parent in parents:
        logits = twin.after(tokens[1:], features, paths[parent])
        place = logits.topk(growth.width).indices
        children = [draft for draft in growth.drafts if draft.parent == parent]
        above = growth.drafts[parent].chance if parent >= 0 else 0.0
        assert [child.token for child in children] == twin.ids[place.numpy()].tolist()
        chances = [child.chance - above for child in children]
        np.testing.assert_allclose(chances, logits.log_softmax(-1)[place].numpy(), atol=1e-3)


@pytest.mark.parametrize("shape", [Branching(3, 3, 8), Branching(4, 1, 4)])
def test_nothing_stale_stands_in_the_caches(made, shape, tmp_path):
    """Entries after accepted drafts, moved ones too, chunks, hits and preemption are those of a run without drafts."""
    model, target = made
    folder = eagle_heads.write(tmp_path / "head", *eagle_heads.eagle3(target))
    quiet = opened(model, folder)
    quiet.quiet = True
    house = House(model, drafter=quiet, enable_prefix_caching=False, threads=1)
    plain = house.run(asked(60))
    house.close()
    for limits in ({"max_num_batched_tokens": 40}, {"num_blocks": 11}):
        drafter = opened(model, folder, shape, **limits)
        house = House(model, drafter=drafter, threads=1, poison=True, **limits)
        run = house.run(asked(60))
        assert run.outputs == plain.outputs
        assert run.stats["drafts_accepted"] > 30 and (run.stats["copies"] > 5) == (shape.width > 1)
        assert run.stats["preemptions"] if "num_blocks" in limits else run.stats["chunks"]
        same(drafter.entries, quiet.entries)
        drafter.entries.clear()
        again = house.run(asked(60))
        house.close()
        assert again.outputs == plain.outputs and again.stats["hits"]
        same(drafter.entries, quiet.entries)


def same(entries, plain):
    assert len(entries) > 150 and entries.keys() <= plain.keys()
    wrong = [at for at, x in entries.items() if not np.array_equal(x, plain[at])]
    assert not wrong, f"{len(wrong)} of {len(entries)} entries differ: {wrong[:5]}"


def test_requests_without_drafts_leave_no_holes_for_those_with(made, tmp_path):
    """A hit on blocks that a request which wants no drafts has filled: the head has gone over them too."""
    model, target = made
    folder = eagle_heads.write(tmp_path / "head", *eagle_heads.eagle3(target))
    house = House(model, drafter=opened(model, folder), threads=1, poison=True)
    first = house.run(asked(30, speculate=False))
    assert first.stats["drafts_accepted"] == first.stats["drafts_rejected"] == 0
    second = house.run(asked(30))
    assert second.stats["hits"] and second.stats["drafts_accepted"] > 20 and second.outputs == first.outputs
    house.close()


# ---- folders
def test_kinds_are_told_by_name_and_by_tensors(made, tmp_path):
    model, _ = made
    for number, (config, tensors) in enumerate(map(random_head, KINDS)):
        for names in (["LlamaForCausalLM"], ["LlamaForCausalLMEagle3"], []):
            folder = eagle_heads.write(tmp_path / f"{number}", config | {"architectures": names}, tensors)
            assert isinstance(head_drafter(str(folder), heads.open_target(model)), EagleDrafter)


def without(*names):
    return lambda config, tensors: [tensors.pop(name) for name in names]


def stating(**fields):
    return lambda config, tensors: config.update(fields)


def holding(**given):
    return lambda config, tensors: tensors.update({name.replace("__", "."): array for name, array in given.items()})


BAD = [
    ("eagle3", stating(vocab_size=999), ConfigError, "a vocabulary of 999; the target's is 275"),
    ("eagle1", stating(hidden_size=64), ConfigError, "hidden states of 64; the target's is 72"),
    ("eagle3", stating(num_hidden_layers=2), ConfigError, "2 layers: EAGLE heads have one"),
    ("eagle3", stating(norm_before_fc=True), ConfigError, "norm_before_fc: EAGLE heads of this kind are not supported"),
    ("eagle3", holding(fc_norm__0__weight=np.ones(72, np.float32)), ConfigError, "fc_norm: EAGLE heads"),
    ("eagle3", stating(eagle_config={"use_aux_hidden_state": False}), ConfigError, "use_aux_hidden_state false"),
    ("eagle3", stating(eagle_aux_hidden_state_layer_ids=[1, 2, 9]), ConfigError, "[1, 2, 9]: not layers of the target"),
    ("eagle3", stating(eagle_aux_hidden_state_layer_ids="2"), ConfigError, "not layers of the target, which has 4"),
    ("eagle3", stating(eagle_aux_hidden_state_layer_ids=[1, 2]), ConfigError, "fc.weight"),
    ("eagle3", without("lm_head.weight"), BadFileError, "lacks lm_head.weight"),
    ("eagle3", without("midlayer.self_attn.o_proj.weight"), BadFileError, "lacks midlayer.self_attn.o_proj.weight"),
    ("eagle3", holding(extra=np.ones(3, np.float32)), BadFileError, "holds extra"),
    ("eagle3 reduced", without("d2t"), ConfigError, "a vocabulary of 150; the target's is 275"),
    ("eagle3 reduced", holding(d2t=np.full(150, 200)), ConfigError, "d2t leads to token"),
    ("eagle3 reduced", holding(d2t=np.zeros(9, np.int64)), BadFileError, "d2t is I64 [9], not I64 [150]"),
    (
        "eagle3 reduced",
        stating(draft_vocab_size=149),
        ConfigError,
        "lm_head.weight [149, 72], the file holds [150, 72]",
    ),
    ("eagle1", stating(hidden_act="mish"), ConfigError, "mish"),
]


@pytest.mark.parametrize(("kind", "break_it", "error", "said"), BAD, ids=[said for *_, said in BAD])
def test_what_does_not_fit_is_refused_in_one_line(made, tmp_path, kind, break_it, error, said):
    config, tensors = random_head(kind)
    break_it(config, tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(OctavoError) as raised:
        head_drafter(str(tmp_path), heads.open_target(made[0]))
    assert isinstance(raised.value, error) and said in raised.value.message and "\n" not in raised.value.message
    assert str(tmp_path) in raised.value.message


# ---- how much
@pytest.mark.parametrize(("pace", "least", "most"), [((1.0, 0.0), 4, 8), ((1.0, 0.25), 0.1, 3), ((1e-7, 0.0), 0, 0.8)])
def test_as_many_are_proposed_as_pay(made, tmp_path, pace, least, most):
    """Steps that last; rows that cost a quarter of a step; steps of no time, of which two are tried."""
    model, target = made
    folder = eagle_heads.write(tmp_path / "head", *eagle_heads.eagle3(target))
    drafter = opened(model, folder, adaptive=True)
    house = House(model, drafter=drafter, threads=1)
    house.parts.runner.seconds = lambda rows: pace[0] + pace[1] * (rows - 1)
    run = house.run(asked(30)[:1])
    house.close()
    proposed = run.stats["drafts_accepted"] + run.stats["drafts_rejected"]
    assert least <= proposed / run.stats["steps"] <= most


def test_outputs_for_which_nothing_pays_are_let_go(made, tmp_path, monkeypatch):
    """Their prompts are gone over all the same; other requests have their chance, and so has one that begins anew."""
    monkeypatch.setattr(eagle, "PATIENCE", 10)
    model, target = made
    folder = eagle_heads.write(tmp_path / "head", *eagle_heads.eagle3(target))
    drafter = opened(model, folder, adaptive=True)
    house = House(model, drafter=drafter, threads=1, enable_prefix_caching=False)
    house.parts.runner.seconds = lambda rows: 1e-7
    slow = house.run(asked(40)[1:])
    for one in asked()[1:]:
        gone = sorted(index for name, index in drafter.entries if name == one.id)
        assert gone == list(range(len(gone))) and len(one.prompt_ids) + 8 <= len(gone) <= len(one.prompt_ids) + 20
    drafter._worth = TreeWorth()
    house.parts.runner.seconds = lambda rows: 1.0
    fast = house.run(asked(40)[1:])
    assert fast.outputs == slow.outputs and fast.stats["drafts_accepted"] > 20
    house.close()


def test_a_level_pays_by_what_it_promises():
    worth = TreeWorth()
    session = SimpleNamespace(seconds=lambda rows: 0.01)
    assert worth.pays({"a": 0.5}, 0.004, 1, session)
    assert not worth.pays({"a": 0.5}, 0.004, 2, session), "a token is worth half a step of two requests"
    assert worth.pays({"a": 0.5, "b": 0.5}, 0.004, 2, session)
    for _ in range(30):
        worth.proposed("a", [0.9])
        worth.hear("a", 1, 0)
    assert not worth.pays({"a": 0.5}, 0.001, 1, session), "what was promised did not come"
    assert TreeWorth(adaptive=False).pays({}, 1.0, 1, session)


class Overlapping(Kept):
    """Of each step that had a draft: how much the head's distribution and the target's overlap, and what came of it."""

    def extend(self, session, rows):
        logits = session.view("logits")
        for row in rows:
            if row.row.num_drafts:
                first = row.logits + len(row.row.token_ids) - row.row.num_drafts - 1 - row.row.logits_from
                target = softmax(logits[first] / self.temperature)
                self.seen.append((np.minimum(target, self.drafted[row.request.id]).sum(), len(row.result.accepted)))
        super().extend(session, rows)

    def propose(self, session, rows):
        found = session.view(LOGITS)
        self.drafted = {row.request.id: softmax(found[at] / self.temperature) for at, row in enumerate(rows)}
        return super().propose(session, rows)


def softmax(logits):
    odds = np.exp(logits - logits.max())
    return odds / odds.sum()


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_sampled_drafts_come_true_about_as_often_as_distributions_overlap(made, tmp_path, temperature):
    """The same noise on both sides: not far below the optimum, 1 - TV."""
    model, target = made
    folder = eagle_heads.write(tmp_path / "head", *eagle_heads.eagle3(target))
    drafter = opened(model, folder, Branching(1, 1, 1), kind=Overlapping)
    drafter.seen, drafter.temperature = [], temperature
    params = SamplingParams(temperature=temperature, max_tokens=60, ignore_eos=True)
    house = House(model, drafter=drafter, threads=1)
    house.run([Request(f"r{i}", tuple(ids), params, seed=i) for i, ids in enumerate(prompts(VOCAB, (7,) * 12))])
    house.close()
    overlap, accepted = np.mean(drafter.seen, axis=0)
    assert len(drafter.seen) > 300 and 0.4 < overlap < 0.98
    assert overlap - 0.1 < accepted < overlap + 0.05
