import asyncio

import pytest

from parlmesh.dashboard.answer_cache import MOST_ANSWERS, SharedAnswers
from parlmesh.errors import Unavailable


class Source:
    """Counts its calls, and answers when told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.asked += 1
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return self.asked


async def test_however_many_pages_ask_at_once_the_fleet_is_asked_once() -> None:
    source = Source()
    answers = SharedAnswers(lambda: 0.0)
    waiting = [asyncio.create_task(answers.get("key", 1.0, source)) for _ in range(50)]
    source.go.set()
    assert set(await asyncio.gather(*waiting)) == {1}
    assert answers.asked == 1


async def test_an_answer_that_is_too_old_is_asked_for_again() -> None:
    now = 0.0
    source = Source()
    source.go.set()
    answers = SharedAnswers(lambda: now)
    assert await answers.get("key", 1.0, source) == 1
    now = 0.9
    assert await answers.get("key", 1.0, source) == 1
    now = 1.0
    assert await answers.get("key", 1.0, source) == 2


async def test_a_service_that_is_away_is_not_asked_more_often_than_one_that_is_there() -> None:
    source = Source()
    source.go.set()
    source.error = Unavailable("away")
    answers = SharedAnswers(lambda: 0.0)
    for _ in range(5):
        with pytest.raises(Unavailable, match="away"):
            await answers.get("key", 1.0, source)
    assert source.asked == 1


async def test_a_page_that_leaves_does_not_take_the_answer_from_the_others() -> None:
    source = Source()
    answers = SharedAnswers(lambda: 0.0)
    first = asyncio.create_task(answers.get("key", 1.0, source))
    await asyncio.sleep(0)
    second = asyncio.create_task(answers.get("key", 1.0, source))
    await asyncio.sleep(0)
    first.cancel()
    source.go.set()
    assert await second == 1


async def test_what_is_kept_is_bounded() -> None:
    source = Source()
    source.go.set()
    answers = SharedAnswers(lambda: 0.0)
    for key in range(MOST_ANSWERS + 10):
        await answers.get(key, 1.0, source)
    assert len(answers._answers) == MOST_ANSWERS


async def test_slow_answers_are_asked_for_less_often() -> None:
    now = 0.0
    asked = 0

    async def slow() -> int:
        nonlocal now, asked
        now += 0.05
        asked += 1
        return asked

    answers = SharedAnswers(lambda: now)
    assert await answers.get("key", 0.5, slow) == 1
    now = 1.9
    assert await answers.get("key", 0.5, slow) == 1
    now = 2.1
    assert await answers.get("key", 0.5, slow) == 2
