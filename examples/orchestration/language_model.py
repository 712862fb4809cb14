"""A Hugging Face causal model as the orchestrator of a live job, with sub-agents behind an OpenAI-compatible server.

PARLMESH_CHAT_URL=http://127.0.0.1:8000/v1 PARLMESH_CHAT_MODEL=my-model \\
    python examples/orchestration/language_model.py FOLDER "Find out who won each of the last ten finals."

FOLDER contains a causal model that writes tool calls (Qwen, Hermes, …) and its tokenizer; nothing is downloaded.
"""

import asyncio
import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

from parlmesh.client import PARLController
from parlmesh.orchestration import Budget
from parlmesh.orchestration.language.orchestrator import LanguageOrchestrator, writes_with
from parlmesh.orchestration.live import Orchestrator


async def main(folder: str, job: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    async with PARLController() as controller:
        await controller.initialize(16, actor={"plugins": ["orchestration"]})
        live = Orchestrator(controller, kind="chat_sub_agent", budget=Budget(critical_steps=100))
        result = await LanguageOrchestrator(live, writes_with(model, tokenizer)).run(job)
    print(result.answer)
    print(f"{result.sub_agents} sub-agents, {result.spent['critical_steps']:g} critical steps")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
