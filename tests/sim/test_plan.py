"""Plans: parameters, memory, words; the machine file; costs by features; corrections."""

import json
import math
from dataclasses import replace

import pytest

from octavo.cli.main import main
from octavo.errors import ConfigError
from octavo.model_config import ModelConfig
from octavo.models.known import KNOWN
from octavo.models.registry import program_for
from octavo.program.cost import op_cost, program_cost
from octavo.program.lower import default_kinds, lower
from octavo.program.report import explain_totals
from octavo.sim.learning import Sample, beside, corrections, line
from octavo.sim.linear import features, find
from octavo.sim.machine import DEVICES, Correction, from_file, from_mapping, to_toml
from octavo.sim.parallel import Parallel
from octavo.sim.planning import Wish, memory_of, plan, prefill_seconds
from octavo.sim.steps import StepModel
from octavo.types import StepShape

# Parameters as their publishers count them.
PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "smollm2-1.7b": 1_711_376_384,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mistral-7b": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "olmo-2-7b": 7_298_617_344,
    "gemma-2-9b": 9_241_705_984,
    "deepseek-v3": 671_026_419_200,
    "glm-5.2": 743.4e9,
}


def program_of(name, kv_dtype="bf16"):
    plain = program_for(ModelConfig.from_mapping(KNOWN[name]))
    return lower(plain, default_kinds(plain), None, "bf16", kv_dtype=kv_dtype)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_that_were_published(name):
    program = program_for(ModelConfig.from_mapping(KNOWN[name]))
    assert explain_totals(program).parameters == pytest.approx(PUBLISHED[name], rel=1e-3)


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma-2-9b", "gpt-oss-20b"])
def test_a_step_model_without_corrections_is_the_sum_of_its_operators(name):
    """Priced by features or walked operator by operator: the same seconds."""
    model = StepModel(program_of(name), DEVICES["h100"])
    for shape in (StepShape.decode(17, 3000), StepShape((300, 1, 1), (50, 9000, 4), 3), StepShape.prefill(5000)):
        parts = model.parts(shape)
        assert model.seconds(shape) == pytest.approx(sum(part.seconds for part in parts), rel=1e-6)
        assert sum(part.cost.flops for part in parts) == program_cost(model.program, shape).flops


def test_features_price_attention_exactly_or_not_at_all():
    program = program_of("gemma-2-9b")
    for op in program.ops[:40]:
        window = next((part.attrs["window"] for part in op.parts if "window" in part.attrs), 0)
        priced = find(lambda shape, op=op: op_cost(program, op, shape), window)
        assert priced is not None
        for shape in (StepShape.decode(9, 7000), StepShape((40, 2), (4090, 17), 5)):
            assert priced(features(shape, window)) == op_cost(program, op, shape)
    assert find(lambda shape: replace(op_cost(program, op, shape), flops=shape.tokens**2), 0) is None


def test_memory_is_counted_by_device():
    program = program_of("llama-3.1-70b")
    alone = memory_of(program, DEVICES["h100"], Parallel(), 2048)
    eight = memory_of(program, DEVICES["h100"], Parallel(8, kv_heads=8, layers=80, hidden=8192), 2048)
    assert sum(alone.weights.values()) == pytest.approx(2 * 70.55e9, rel=0.001)
    assert sum(eight.weights.values()) == pytest.approx(sum(alone.weights.values()) / 8, rel=1e-3)
    assert alone.per_token == {"full": 327_680} and eight.per_token == {"full": 40_960}
    latent = memory_of(program_of("deepseek-v3"), DEVICES["h100"], Parallel(8, layers=61, hidden=7168), 2048)
    assert latent.per_token == {"full": 70_272}, "every device keeps the latents"
    assert alone.spare < 0 < eight.spare
    assert eight.requests(8192, 16) == int(eight.spare / (8192 * 40_960))
    assert eight.longest(eight.requests(8192, 16), 16, 131_072) >= 8192


def test_a_row_of_logits_a_request_and_a_tokenizer_where_it_is_in_the_same_memory():
    program, machine = program_of("llama-3.1-8b"), DEVICES["h100"]
    few, more, unknown = (memory_of(program, machine, Parallel(), 512, requests) for requests in (1, 65, 0))
    row = (more.values - few.values) / 64
    assert 128_256 * 4 < row < 1.1 * 128_256 * 4 and unknown.values - more.values == 191 * row
    assert few.tokenizer == 0
    here = memory_of(program, replace(machine, entry=260.0), Parallel(), 512, 1)
    assert here.tokenizer == 260 * 128_256 and here.spare == few.spare - here.tokenizer


def test_windows_cap_what_a_request_holds():
    memory = memory_of(program_of("gpt-oss-20b"), DEVICES["h100"], Parallel(), 2048)
    assert memory.of_request(64, 16) == 64 * 49_152
    assert memory.of_request(100_000, 16) == pytest.approx(100_000 * 24_576 + (128 + 16) * 24_576)


def test_a_plan_says_what_is_nearest():
    program, parallel = program_of("llama-3.1-8b"), Parallel(kv_heads=8, layers=32, hidden=4096)
    wish = Wish(32768, requests=64, gap=0.005)
    found = plan(program, DEVICES["h100"], wish, parallel, max_context=131_072)
    assert not found.fits and found.most_requests < 64
    again = plan(program, DEVICES["h100"], replace(wish, requests=found.most_requests), parallel, max_context=131_072)
    assert again.fits
    easy = plan(program, DEVICES["h100"], Wish(1024, requests=4), parallel, max_context=131_072)
    assert easy.met and easy.speed.decode < found.speed.decode


def test_long_prompts_are_computed_in_chunks():
    model = StepModel(program_of("smollm2-135m"), DEVICES["a100"])
    whole = prefill_seconds(model, 8000, 8000)
    assert prefill_seconds(model, 8000, 2000) > whole
    assert prefill_seconds(model, 8000, 2000) < 3 * whole


@pytest.mark.parametrize(
    "parallel", [Parallel(4, kv_heads=8, layers=32, hidden=4096), Parallel(1, 4, layers=32, hidden=4096)]
)
def test_devices_share_and_talk(parallel):
    program = program_of("llama-3.1-8b")
    alone = StepModel(program, DEVICES["h100"]).seconds(StepShape.decode(64, 4000))
    together = StepModel(program, DEVICES["h100"], parallel).seconds(StepShape.decode(64, 4000))
    if parallel.tp > 1:
        assert alone / 4 < together < alone
    else:
        assert together > alone, "a token passes every stage"
        assert parallel.bubble(1) == 3 / 4 and parallel.bubble(10**6) < 1e-5


def test_a_machine_file_is_read_as_it_was_written(tmp_path):
    machine = replace(
        DEVICES["h200"],
        corrections={"linear u4": Correction(((1.0, 1.5, 0.0), (64.0, 1.1, 2e-6)), 0.02)},
        measured=True,
    )
    path = tmp_path / "m.toml"
    path.write_text(to_toml(machine))
    assert from_file(path) == machine
    assert machine.corrections["linear u4"].seconds(1e-5, 8) == pytest.approx(1.3e-5 + 1e-6)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"memory": 1, "read": 1}, "products is required"),
        ({"memory": 1, "read": [[2, 3], [1, 4]], "products": {"f32": 1, "bf16": 1}}, "read: the first numbers ascend"),
        ({"memory": 1, "read": "x", "products": {"f32": 1, "bf16": 1}}, "read: a list of pairs"),
        ({"memory": -1, "read": 1, "products": {"f32": 1, "bf16": 1}}, "memory: a number"),
        ({"memory": 1, "read": 1, "products": {"bf16": 1}}, "products.f32: a number"),
        ({"memroy": 1}, "unknown field 'memroy'"),
    ],
)
def test_a_machine_file_that_is_wrong_is_refused_by_field(data, message):
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        from_mapping(data, "m.toml")


def test_corrections_are_what_was_measured():
    """Samples that took twice what the limits ask at 4 rows and three times at 64 are predicted as they were."""
    program, machine = program_of("smollm2-135m"), DEVICES["a100"]
    bare = StepModel(program, machine)
    samples = []
    for shape, slow in ((StepShape.decode(4, 500), 2.0), (StepShape.decode(64, 500), 3.0)):
        samples.append(Sample(program, shape, [slow * least for _, _, least in bare.least(shape)]))
    learnt = replace(machine, corrections=corrections(machine, samples), step=0.0, row=0.0)
    model = StepModel(program, learnt)
    for sample in samples:
        assert model.seconds(sample.shape) == pytest.approx(sum(sample.seconds), rel=0.02)
    assert all(each.error == pytest.approx(0, abs=1e-9) for each in learnt.corrections.values())
    between = model.seconds(StepShape.decode(16, 500)) / StepModel(
        program, replace(machine, step=0.0, row=0.0)
    ).seconds(StepShape.decode(16, 500))
    assert 2.0 < between < 3.0


def test_a_line_has_no_negative_part():
    assert line([(1.0, 3.0), (2.0, 5.0), (4.0, 9.0)]) == (pytest.approx(2.0), pytest.approx(1.0))
    assert line([(1.0, 1.0), (2.0, 4.0)])[1] == 0.0
    assert line([(1.0, 4.0), (2.0, 2.0)])[0] == 0.0
    assert line([(3.0, 6.0)]) == (2.0, 0.0)


def test_what_is_beside_operators_is_a_line():
    step, row = beside([1, 8, 32], [110e-6, 180e-6, 420e-6])
    assert (step, row) == (pytest.approx(100e-6), pytest.approx(10e-6))
    assert beside([1, 2], [2.0, 1.0])[1] == 0.0


@pytest.mark.parametrize("model", ["llama-3.1-70b", "deepseek-v3", "glm-5.2", "gpt-oss-120b"])
def test_the_command_explains_its_limits(model, capsys, tmp_path):
    report = tmp_path / "plan.html"
    assert main(["plan", model, "--machine", "h100", "--count", "8", "--json", "--html", str(report)]) == 0
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])
    assert found["devices"] == 8 and found["predicted"]
    assert found["why"] and all(math.isfinite(part["seconds"]) for part in found["parts"])
    assert found["fits"] or found["nearest"]
    assert "<svg" in report.read_text() and "http" not in report.read_text().replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--context", "0"], "--context is at least 1"),
        (["--count", "4", "--tp", "3"], "tp 3 x pp 1 x ep 1 is 3 devices, and --count says 4"),
        (["--machine", "h300"], "--machine h300: this, a100"),
        (["--machine", "no.toml"], "no.toml: No such file"),
        (["--gap", "0"], "--gap is more than 0 seconds"),
    ],
)
def test_wishes_that_make_no_sense_are_one_line(words, message, capsys):
    assert main(["plan", "llama-3.2-1b", "--machine", "h100", *words]) != 0
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
