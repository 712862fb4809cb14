"""Sub-agents that call an OpenAI-compatible server (`POST /chat/completions`): handler `chat_sub_agent`.

The actor's operator configures it: PARLMESH_CHAT_URL (http://127.0.0.1:8000/v1), PARLMESH_CHAT_MODEL, and
PARLMESH_CHAT_KEY_FILE, a file with the key, which is only sent to that server and never shown. Tasks carry the prompts.
"""

import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

URL, MODEL, KEY_FILE = "PARLMESH_CHAT_URL", "PARLMESH_CHAT_MODEL", "PARLMESH_CHAT_KEY_FILE"
CALL_SECONDS = 120.0
LARGEST_ANSWER_BYTES = 4 * 1024 * 1024
LONGEST_PROMPT = 1_000_000


class ChatFailed(Exception):
    """The chat server failed or gave an unusable answer."""

    def __init__(self, message: str, *, retryable: bool, reason: str = "CHAT_FAILED") -> None:
        super().__init__(message)
        self.retryable, self.reason = retryable, reason


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send the key elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


class ChatSubAgent:
    """Asks once and answers the text, with the tokens that it cost as steps where `steps_are_tokens` is set."""

    kind = "chat_sub_agent"
    runs_in = "thread"

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Any) -> dict[str, Any]:
        """Asks one question."""
        request = _request(parameters)
        context.check()
        opener = urllib.request.build_opener(_NoRedirects)
        try:
            with opener.open(request, timeout=CALL_SECONDS) as response:
                body = response.read(LARGEST_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                busy = error.code == 429 or error.code >= 500
                raise ChatFailed(f"the chat server answered {error.code} {error.reason}", retryable=busy) from None
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            why = getattr(error, "reason", error)
            raise ChatFailed(f"the chat server cannot be reached: {why}", retryable=True) from None
        if len(body) > LARGEST_ANSWER_BYTES:
            raise ChatFailed(f"the chat server's answer has more than {LARGEST_ANSWER_BYTES} bytes", retryable=False)
        return _answer(body)


def _request(parameters: dict[str, Any]) -> urllib.request.Request:
    prompt, system = parameters.get("prompt"), parameters.get("system_prompt", "")
    if not isinstance(prompt, str) or not 0 < len(prompt) <= LONGEST_PROMPT:
        raise InvalidInput(f"chat_sub_agent needs a prompt, a text of 1 to {LONGEST_PROMPT} characters")
    if not isinstance(system, str) or len(system) > LONGEST_PROMPT:
        raise InvalidInput(f"system_prompt must be a text of at most {LONGEST_PROMPT} characters")
    url = os.environ.get(URL, "")
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ChatFailed(
            f"{URL} of this actor must be an http address, got {url!r}", retryable=False, reason="NOT_SET_UP"
        )
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    asked: dict[str, Any] = {"model": os.environ.get(MODEL, "default"), "messages": messages}
    most = parameters.get("max_tokens")
    if most is not None:
        if isinstance(most, bool) or not isinstance(most, (int, float)) or not 1 <= most <= 1_000_000:
            raise InvalidInput(f"max_tokens must be from 1 to 1000000, got {most!r}")
        asked["max_tokens"] = int(most)
    headers = {"Content-Type": "application/json", **key_header()}
    data = json.dumps(asked).encode()
    return urllib.request.Request(f"{url.rstrip('/')}/chat/completions", data, headers)  # noqa: S310  # checked above


def key_header() -> dict[str, str]:
    """The authorization header; empty without a key file."""
    if not os.environ.get(KEY_FILE):
        return {}
    file = Path(os.environ[KEY_FILE])
    try:
        key = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ChatFailed(f"{file} ({KEY_FILE}) cannot be read: {error}", retryable=False, reason="NOT_SET_UP") from None
    if not key.isprintable():
        raise ChatFailed(f"{file} ({KEY_FILE}) must contain one printable line", retryable=False, reason="NOT_SET_UP")
    return {"Authorization": f"Bearer {key}"}


def _answer(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
        text = found["choices"][0]["message"]["content"]
        usage = found.get("usage") or {}
        tokens = usage.get("completion_tokens", 0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ChatFailed("the chat server's answer is not a chat completion", retryable=False) from None
    if not isinstance(text, str):
        raise ChatFailed("the chat server's answer has no text", retryable=False)
    return {"text": text, "tokens": tokens if isinstance(tokens, int) and 0 <= tokens < 2**53 else 0, "done": True}
