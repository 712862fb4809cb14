"""A language model as the orchestrator of a live job: its tool calls become sub-agents and tasks on the fleet."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from parlmesh.errors import InvalidInput

from ..budget import BudgetExceeded
from ..live.orchestrator import JobResult, Orchestrator
from .tool_calls import ARGUMENTS, Call, next_call

Writes: TypeAlias = Callable[[str], str]
"""Maps the conversation so far to the model's next text."""

INSTRUCTIONS = f"""You can call tools, one at a time: <tool_call>{{"name": …, "arguments": {{…}}}}</tool_call>
create_subagent(name, system_prompt), assign_task(agent, prompt), wait() for everyone who was assigned, finish(answer).
Tools: {", ".join(ARGUMENTS)}."""
_LONGEST_RESULT = 4_000


class LanguageOrchestrator:
    """Runs the model's calls and feeds back their results until it finishes or its budget or turns run out."""

    def __init__(self, live: Orchestrator, write: Writes, *, most_turns: int = 200) -> None:
        if most_turns < 1:
            raise InvalidInput(f"most_turns must be >= 1, got {most_turns}")
        self._live, self._write, self._most_turns = live, write, most_turns
        self.conversation = ""

    async def run(self, job: str) -> JobResult:
        """The job's result; its answer is the model's argument to finish, or None if it never finished."""
        self.conversation = f"{INSTRUCTIONS}\n\n{job}\n"
        for _ in range(self._most_turns):
            # In a thread: a model may take minutes, and the connection to the fleet must keep running.
            text = await asyncio.to_thread(self._write, self.conversation)
            call, rest = next_call(text)
            # Drop text after a call: the model wrote it without knowing the result.
            self.conversation += text[: len(text) - len(rest)] if call is not None else text
            if call is None:
                self._tell("say a tool call")
                continue
            if call.name == "finish":
                return self._live.finish(call.arguments.get("answer"))
            try:
                self._tell(call.error or await self._perform(call))
            except BudgetExceeded as error:
                self._tell(str(error))
                break
            except InvalidInput as error:
                self._tell(error.message)
        return self._live.finish(None)

    async def _perform(self, call: Call) -> str:
        given = call.arguments
        if call.name == "create_subagent":
            self._live.create_subagent(given["name"], given.get("system_prompt", ""))
            return "ok"
        if call.name == "assign_task":
            self._live.assign_task(given["agent"], {"prompt": given["prompt"]})
            return "ok"
        if not self._live.assigned:
            return "nothing is assigned"
        said = [f"{each.agent}: {each.value.get('text', each.error)}" for each in await self._live.wait()]
        return "\n".join(line[:_LONGEST_RESULT] for line in said)

    def _tell(self, result: str) -> None:
        # Escape results, so that one that looks like a call is not read as one.
        self.conversation += f"\n<tool_response>{result.replace('<', '‹')}</tool_response>\n"


def writes_with(model: Any, tokenizer: Any, *, max_new_tokens: int = 256) -> Writes:
    """A Hugging Face causal model and its tokenizer as a writer; it stops at the end of a call."""
    import torch

    def write(conversation: str) -> str:
        given = tokenizer(conversation, return_tensors="pt").to(model.device)
        with torch.inference_mode():
            ids = model.generate(
                **given,
                max_new_tokens=max_new_tokens,
                do_sample=False,
                stop_strings=["</tool_call>"],
                tokenizer=tokenizer,
            )
        text: str = tokenizer.decode(ids[0, given["input_ids"].shape[1] :], skip_special_tokens=True)
        return text

    return write
