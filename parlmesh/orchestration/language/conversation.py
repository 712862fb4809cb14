"""A job as a conversation: prompt, tool calls and their results. Its sub-agents are the simulation's frozen ones."""

from ..budget import Budget, BudgetExceeded
from ..jobs.simulation import HANDOVER_STEPS
from ..jobs.sub_agents import SubAgent
from .tool_calls import Call, next_call
from .vocabulary import AGENTS, State


class Conversation:
    """One job: its items, and the text so far."""

    def __init__(self, items: dict[str, int], agent: SubAgent, budget: Budget) -> None:
        """`items` maps names to sub-task numbers."""
        self._items, self._agent, self.budget = dict(items), agent, budget
        self._size = len(items)
        self.done: set[str] = set()
        self.assigned: dict[str, str] = {}
        self.agents: list[str] = []
        self.assigned_ever = self.completed = 0
        self.finished = self.over = False
        self._begun = ""
        self.text = f"Do these: {' '.join(items)}\n"

    @property
    def coverage(self) -> float:
        """Share of items that are done."""
        return len(self.done) / self._size

    @property
    def state(self) -> State:
        """The state that the grammar depends on."""
        taken = set(self.assigned.values()) | self.done
        return State(
            free_names=[name for name in AGENTS if name not in self.agents],
            idle=[name for name in self.agents if name not in self.assigned],
            open_items=[item for item in self._items if item not in taken],
            assigned=bool(self.assigned),
        )

    def say(self, text: str) -> str:
        """Appends the model's text and returns the answer, which is empty until a call is complete."""
        self.text += text
        call, rest = next_call(self._begun + text)
        self._begun = rest if call is None else ""
        if call is None:
            return ""
        try:
            answer = "refused\n" if call.error else self._perform(call)
        except BudgetExceeded:
            self.over, answer = True, "refused\n"
        self.text += answer
        return answer

    def _perform(self, call: Call) -> str:
        if call.name == "finish":
            self.finished = self.over = True
            return "ok\n"
        if call.name == "create_subagent":
            name = call.arguments["name"]
            if name in self.agents:
                return "refused\n"
            self.budget.create_in_a_stage()
            self.agents.append(name)
            return "ok\n"
        if call.name == "assign_task":
            agent, item = call.arguments["agent"], call.arguments["prompt"]
            if agent not in self.state.idle or item not in self.state.open_items:
                return "refused\n"
            self.assigned[agent] = item
            self.assigned_ever += 1
            return "ok\n"
        return self._wait()

    def _wait(self) -> str:
        if not self.assigned:
            return "refused\n"
        left = int(self.budget.left["critical_steps"]) - 1
        steps, said = [], []
        for item in self.assigned.values():
            needed, found = self._agent.work(self._items[item])
            needed += HANDOVER_STEPS
            steps.append(min(needed, max(left, 0)))
            if found and needed <= left:
                self.done.add(item)
                self.completed += 1
            said.append(f"{'done' if item in self.done else 'failed'} {item}")
            # The next try is a new draw.
            self._items[item] = (self._items[item] + 1) % 4_096
        self.assigned.clear()
        self.budget.stage(1, steps)
        return f"{' '.join(said)}\n"
