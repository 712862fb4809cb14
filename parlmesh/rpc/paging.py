"""Paged lists."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

Answer = TypeVar("Answer")

MAX_PAGES = 10_000


async def pages(call: Callable[[Any], Awaitable[Answer]], request: Any) -> AsyncIterator[Answer]:
    """Every answer to a request that has a `page_token`, from the one it names to the last."""
    for _ in range(MAX_PAGES):
        answer: Any = await call(request)
        yield answer
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token
