"""LLM.embed: encoders whole, decoders by the last row or the mean; refusals with numbers; the same bits in company."""

import asyncio
import json

import numpy as np
import pytest
from engines import settle
from exactness.families import write_encoder
from safetensors.numpy import load_file, save_file
from tiny_model import VOCAB, write_tokenizer

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.config import EngineConfig
from octavo.errors import CapacityError, ConfigError, EngineError, RequestError, UsageError

TEXTS = ["the cat in the hat", "an", "there and then and there, the end of the thing"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    write_tokenizer(folder)
    return write_encoder(folder, vocab_size=VOCAB)


@pytest.fixture
def embedder(model, encoder):
    """embedder(name, **options): opened to embed, closed at the end, its blocks all back."""
    made = []

    def make(which="encoder", executor="native", **options):
        path = encoder if which == "encoder" else model
        options = {"threads": 2, "num_blocks": 64, "max_model_len": 256, "task": "embed", **options}
        made.append(LLM(path, executor=executor, **options))
        return made[-1]

    yield make
    for llm in made:
        settle(llm)
        llm.close()


def vectors(llm, texts=TEXTS):
    return np.array([output.embedding for output in llm.embed(texts, use_tqdm=False)])


@pytest.mark.parametrize(
    ("which", "pooling"),
    [("encoder", "last"), ("encoder", "mean"), ("encoder", "cls"), ("decoder", "last"), ("decoder", "mean")],
)
def test_native_is_near_the_reference(embedder, which, pooling):
    got, want = (vectors(embedder(which, name, pooling=pooling)) for name in ("native", "reference"))
    assert got.shape == (3, 72 if which == "encoder" else 48)
    assert np.abs(np.linalg.norm(got, axis=1) - 1).max() < 1e-6
    assert np.abs(got - want).max() < 0.03 and np.abs(want[0] - want[1]).max() > 0.1


def test_an_encoder_embeds_by_itself_and_means_by_default(embedder, encoder):
    llm = embedder(task="auto")
    assert llm.info.task == "embed" and llm.info.step_tokens == 512
    [output] = llm.embed(TEXTS[0], use_tqdm=False)
    assert output.prompt == TEXTS[0] and output.prompt_token_ids == tuple(llm.encode(TEXTS[0]))
    assert output.embedding == vectors(embedder(pooling="mean"))[0].tolist()
    long = vectors(embedder(pooling="mean", normalize=False))[0]
    assert np.abs(long / np.linalg.norm(long) - output.embedding).max() < 1e-6


@pytest.mark.parametrize(("stated", "pooling"), [("cls_token", "cls"), ("lasttoken", "last"), ("mean_tokens", "mean")])
def test_a_folder_says_how_it_is_pooled(embedder, encoder, tmp_path, stated, pooling):
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(f"{encoder}/{name}")
    (tmp_path / "1_Pooling").mkdir()
    config = {
        "word_embedding_dimension": 72,
        **{f"pooling_mode_{each}": False for each in ("cls_token", "mean_tokens")},
    }
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({**config, f"pooling_mode_{stated}": True}))
    with LLM(str(tmp_path), threads=1, num_blocks=64) as llm:
        assert np.array_equal(vectors(llm), vectors(embedder(pooling=pooling)))
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({**config, "pooling_mode_max_tokens": True}))
    with pytest.raises(ConfigError, match="pooling_mode_max_tokens: not supported"):
        LLM(str(tmp_path), threads=1, num_blocks=64)


@pytest.mark.parametrize(("which", "pooling"), [("encoder", "mean"), ("encoder", "cls"), ("decoder", "mean")])
def test_whole_texts_are_never_chunked_nor_found_in_the_cache(embedder, which, pooling):
    """Alone and in company, budgets just enough and ample, twice the same text: the same bits."""
    alone = embedder(which, pooling=pooling, threads=1)
    want = np.concatenate([vectors(alone, [text]) for text in TEXTS])
    longest = max(len(alone.encode(text)) for text in TEXTS)
    tight = embedder(which, pooling=pooling, max_num_batched_tokens=longest)
    assert np.array_equal(vectors(tight, [*TEXTS, *TEXTS]), np.concatenate([want, want]))
    assert np.array_equal(vectors(tight), want)
    assert tight.stats().cached_tokens == 0
    with pytest.raises(CapacityError, match=f"{longest} tokens .* at most {longest - 1}: .*max-num-batched-tokens"):
        embedder(which, pooling=pooling, max_num_batched_tokens=longest - 1).embed(TEXTS, use_tqdm=False)


def test_the_last_row_of_a_decoder_is_found_in_the_cache_and_chunked(embedder):
    want = vectors(embedder("decoder", enable_prefix_caching=False))
    llm = embedder("decoder", max_num_batched_tokens=7, block_tokens=16)
    assert np.array_equal(vectors(llm), want) and np.array_equal(vectors(llm), want)
    assert llm.stats().cached_tokens > 0


def test_what_a_model_was_not_loaded_for_is_refused(embedder, model, encoder, shared):
    with pytest.raises(RequestError, match="it does not generate text"):
        embedder().generate("the", SamplingParams(max_tokens=1), use_tqdm=False)
    with pytest.raises(RequestError, match="load it with task embed"):
        shared.embed("the", use_tqdm=False)
    with pytest.raises(ConfigError, match="an encoder embeds"):
        LLM(encoder, threads=1, num_blocks=64, task="generate")
    with pytest.raises(UsageError, match="pooling 'max' is not one of auto, last, mean, cls"):
        LLM(model, pooling="max")
    with pytest.raises(UsageError, match="normalize must be true or false"):
        LLM(model, normalize="yes")


def test_a_vector_that_is_not_finite_is_an_error(embedder, tmp_path):
    write_tokenizer(tmp_path)
    path = write_encoder(tmp_path, vocab_size=VOCAB)
    tensors = load_file(f"{path}/model.safetensors")
    tensors["bert.encoder.layer.0.output.LayerNorm.weight"][3] = np.inf
    save_file(tensors, f"{path}/model.safetensors")
    with LLM(path, threads=1, num_blocks=64) as llm, pytest.raises(EngineError, match="not finite"):
        llm.embed(TEXTS, use_tqdm=False)


@pytest.mark.parametrize("process", [False, True])
def test_streams_embed_the_same_vectors(embedder, encoder, process):
    want = vectors(embedder())

    async def ask():
        config = EngineConfig(model=str(encoder), threads=2, num_blocks=64, max_model_len=256, task="embed")
        llm = await AsyncLLM.start(config, process=process)
        try:
            with pytest.raises(RequestError):
                await llm.embed([10**6])
            return await asyncio.gather(*(llm.embed(text) for text in TEXTS))
        finally:
            llm.close()

    assert np.array_equal(np.array([output.embedding for output in asyncio.run(ask())]), want)
