"""Courses: what is told of an output while it goes on and when it has ended, and what the loop counts of its steps."""

import asyncio

import pytest
from engines import Brake

from octavo import AsyncLLM, SamplingParams, Structure
from octavo.config import EngineConfig
from octavo.engine.course import Course
from octavo.engine.port import STEP_BOUNDS
from octavo.request import TokenDelta


@pytest.fixture
def llm(model, executor):
    config = EngineConfig(
        model=model, executor=executor, threads=1, num_blocks=32, max_model_len=256, max_num_batched_tokens=4
    )
    llm = AsyncLLM(config)
    yield llm
    llm.close()


async def test_a_course_says_how_an_output_went(llm):
    courses, prompt = [], list(range(60, 90))
    params = SamplingParams(n=2, temperature=0, max_tokens=5, ignore_eos=True, seed=11)
    seen = []
    async for delta in llm.stream(prompt, params, courses=courses):
        seen.append((delta.index, courses[delta.index].output_tokens))
    assert [course.index for course in courses] == [0, 1] and seen[-1][1] == 5
    for course in courses:
        assert (course.prompt_tokens, course.output_tokens) == (30, 5) and course.computed == 34
        assert course.begun <= course.begun + course.queued <= course.first < course.latest
        assert 0 < course.longest_gap <= course.latest - course.first
    assert courses[1].cached_tokens and len({course.seed for course in courses}) == 2


async def test_a_prompt_in_chunks_tells_how_far_it_is(llm):
    """Chunks bring no delta to the stream; the course grows all the same."""
    courses, brake = [], Brake(llm, 3)
    stream = llm.stream(list(range(60, 90)), SamplingParams(temperature=0, max_tokens=1), courses=courses)
    first = asyncio.ensure_future(anext(stream))
    while not brake.held:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)
    assert courses[0].computed == 12 and not courses[0].first and not first.done()
    brake.release()
    await first
    await stream.aclose()
    assert courses[0].computed == 30 and courses[0].first


async def test_masks_and_steps_are_counted(llm):
    courses = []
    params = SamplingParams(temperature=0, max_tokens=20, structure=Structure("regex", "[ab]{4}"))
    async for _ in llm.stream([70, 71], params, courses=courses):
        pass
    stats = llm.stats()
    assert stats.masks >= 4 and 0 < courses[0].mask_seconds == pytest.approx(stats.mask_seconds)
    assert sum(stats.step_counts) == stats.steps > 0 and len(stats.step_counts) == len(STEP_BOUNDS) + 1
    assert stats.step_seconds > 0


def test_what_is_no_output_is_not_counted():
    """A late stop keeps a part of a delta; a prompt that was preempted is not less far."""
    course = Course.begin(0, 8, 1)
    course.take(TokenDelta("r", (), computed=8, cached_tokens=4), 0)
    course.take(TokenDelta("r", (), computed=4), 0)
    assert (course.computed, course.cached_tokens, course.first) == (8, 4, 0.0)
    course.take(TokenDelta("r", (1, 2, 3), computed=11, queued=0.5), 2)
    assert course.output_tokens == 2 and course.queued == 0.5 and course.latest == course.first > 0
