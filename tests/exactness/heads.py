"""Draft heads that know what the tiny model says: fitted to a plain run by least squares, with decoys that are often
likelier than the truth, so that trees are accepted deep and off their first branches.
"""

import json

import numpy as np
from safetensors.numpy import save_file

from exactness.harness import House, prompts, request, subjects
from exactness.models import ODD
from octavo.config import EngineConfig
from octavo.drafters.folder import HeadFolder
from octavo.drafters.null import NullDrafter
from octavo.drafters.target import Target
from octavo.request import Structure
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.fetch import resolve
from octavo.weights.stated import model_config

STATE = "final"
SURE = 30.0  # logits of what a fitted head knows, above the noise of sampling


class Recorder(NullDrafter):
    """Proposes nothing; keeps the state that gave the n-th output token, by (request id, n)."""

    taps = (STATE,)
    max_draft = tail = 1  # of none it would not be asked

    def __init__(self):
        self.states = {}

    def serves(self, request):
        return True

    def follow(self, session, requests, tokens):
        return None

    def extend(self, session, rows):
        values = session.view(STATE)
        for row in rows:
            if row.result.token_ids:
                done = len(row.request.output_ids) + len(row.result.token_ids)
                self.states[row.request.id, done] = np.array(values[row.last])


class Watched:
    """A drafter with what became of its drafts: steps that had some, those that took two or more, those that took one
    with an older sibling. logits: what each of its programs gave, with the rows that it took."""

    def __init__(self, inner, views=()):
        self.inner, self.views = inner, views
        self.drafted = self.deep = self.aside = 0
        self.seen = []
        self.chains = set()  # requests that were told what to propose without their rows being shown

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def follow(self, session, requests, tokens):
        proposals = self.inner.follow(session, requests, tokens)
        if proposals is None:
            return None
        for one, news in zip(requests, tokens, strict=True):
            self.drafted += one.id in self.chains
            self.deep += len(news) > 2
        self.chains -= {one.id for one in requests}
        self.chains |= {one.id for one, found in zip(requests, proposals, strict=False) if found.token_ids}
        return proposals

    def extend(self, session, rows):
        for row in rows:
            row, accepted = row.row, row.result.accepted
            if row.num_drafts:
                first = len(row.token_ids) - row.num_drafts
                parents = row.parents or tuple(range(first - 1, len(row.token_ids) - 1))
                self.drafted += 1
                self.deep += len(accepted) >= 2
                self.aside += any(parents[at - first] in parents[: at - first] for at in accepted)
        self.inner.extend(session, rows)

    def propose(self, session, rows):
        proposals = self.inner.propose(Spy(session, self), rows)
        self.chains -= {row.request.id for row in rows}
        self.chains |= {row.request.id for row, found in zip(rows, proposals, strict=True) if found.token_ids}
        return proposals


class Spy:
    """Keeps copies of exports after each run that a drafter makes."""

    def __init__(self, session, watched):
        self.session, self.watched = session, watched

    def __getattr__(self, name):
        return getattr(self.session, name)

    def run(self, program, rows, source_rows=()):
        self.session.run(program, rows, source_rows)
        if self.watched.views:
            tokens = [token for row in rows for token in row.token_ids]
            values = {name: np.array(self.session.view(name)) for name in self.watched.views.get(program, ())}
            self.watched.seen.append((program, tokens, list(source_rows), values))


def open_target(model, **options):
    config = EngineConfig(model=model, **options)
    checkpoint = open_checkpoint(resolve(model))
    return Target(model_config(checkpoint), checkpoint, config)


def open_head(kind, folder, model, **options):
    """Not adaptive: what it proposes depends on no time."""
    target = open_target(model, **options)
    return kind(HeadFolder(folder, target), target, adaptive=False)


def record(model, requests, **options):
    """(outputs, states) of a plain run."""
    recorder = Recorder()
    house = House(model, drafter=recorder, **options)
    outputs = house.run(requests).outputs
    house.close()
    return outputs, recorder.states


def fitted(features, labels, vocab, *, decoys=True):
    """[vocab, width]: rows of features to one token each; every third is said to be its neighbour, a little more."""
    wanted = np.zeros((len(labels), vocab), np.float32)
    wanted[np.arange(len(labels)), labels] = SURE
    if decoys:
        wanted[np.arange(0, len(labels), 3), (np.asarray(labels[::3]) + 1) % vocab] = 1.2 * SURE
    features = np.asarray(features, np.float64)
    square = features.T @ features + 1e-3 * np.trace(features.T @ features) / len(features.T) * np.eye(len(features.T))
    return np.linalg.solve(square, features.T @ wanted).T.astype(np.float32)


def write(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_medusa(folder, outputs, states, vocab, *, heads=3, **config):
    """Identity blocks, as training begins with, and fitted matrices."""
    tensors = {}
    for head in range(heads):
        pairs = [(h, outputs[name][n + head]) for (name, n), h in states.items() if n + head < len(outputs[name])]
        width = len(pairs[0][0])
        tensors[f"{head}.0.linear.weight"] = np.zeros((width, width), np.float32)
        tensors[f"{head}.0.linear.bias"] = np.zeros(width, np.float32)
        tensors[f"{head}.1.weight"] = fitted([h for h, _ in pairs], [token for _, token in pairs], vocab)
    return write(folder, {"architectures": ["MedusaModel"], "medusa_num_heads": heads, **config}, tensors)


# ---- what is asked of a model with and without drafters
VOCAB = ODD["vocab_size"]
TOKENS = 24
EDITS = (
    {"presence_penalty": 0.5, "frequency_penalty": 0.3, "logprobs": 3},
    {"temperature": 0.8, "repetition_penalty": 1.2, "top_k": 20, "logprobs": 2},
    {"temperature": 1.0, "min_p": 0.05, "logit_bias": {5: 2.0}, "logprobs": 1, "logprobs_mode": "processed"},
    {"temperature": 0.7, "min_tokens": 15, "bad_words": (), "allowed_token_ids": tuple(range(3, 180)), "logprobs": 0},
    {"allowed_token_ids": (20, 21, 22), "logprobs": 1},  # soon the text repeats
    {"temperature": 0.4, "allowed_token_ids": (30, 31, 32), "frequency_penalty": -0.5},
    {"structure": Structure("regex", "[a-e ]{40}"), "logprobs": 1},
    {"temperature": 0.7, "structure": Structure("regex", "[a-h ]{8,40}"), "logprobs": 2},
)


def asked():
    """Sixteen: half greedy, some whose logits are edited, whose log-probabilities are wanted, whose output is bound."""
    lengths = (20, 33, 48, 90, 12, 40, 7, 29)
    edited = [
        request(f"e{i}", prompt, tokens=TOKENS, seed=70 + i, **each)
        for i, (prompt, each) in enumerate(zip(prompts(VOCAB, lengths, seed=8), EDITS, strict=True))
    ]
    for each in edited:
        each.eos_ids = (ODD["eos_token_id"],)
    return [*subjects(VOCAB, tokens=TOKENS)[:8], *edited]


def plain_run(model):
    """(the run, its log-probabilities, the states that gave its tokens): each request alone, nothing reused."""
    recorder = Recorder()
    house = House(model, drafter=recorder, enable_prefix_caching=False, threads=1)
    merged, scores = None, {}
    for one in asked():
        run = house.run([one])
        scores |= logprobs(house)
        if merged is None:
            merged = run
        merged.outputs |= run.outputs
        merged.rows |= run.rows
    house.close()
    return merged, scores, recorder.states


def logprobs(house):
    found = {}
    for delta in house.deltas:
        if delta.logprobs:
            found[delta.request_id] = found.get(delta.request_id, ()) + delta.logprobs
    return found
