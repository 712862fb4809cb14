"""Tool calls: those a model may write, those it may not, and a vocabulary that can write nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.orchestration import Budget
from parlmesh.orchestration.jobs.sub_agents import SUB_AGENTS
from parlmesh.orchestration.language.conversation import Conversation
from parlmesh.orchestration.language.environment import LanguageOrchestration
from parlmesh.orchestration.language.tool_calls import Call, next_call, written
from parlmesh.orchestration.language.vocabulary import PIECES, allowed, decode, encode


def test_a_call_is_found_in_the_text_around_it():
    text = f"I think… {written('assign_task', agent='anna', prompt='look')} and then"
    assert next_call(text) == (Call("assign_task", {"agent": "anna", "prompt": "look"}), " and then")
    assert next_call("nothing <tool_call>{") == (None, "nothing <tool_call>{")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("", "must be a JSON object"),
        ("[" * 5_000, "must be a JSON object"),
        ("[]", "with a name"),
        ('{"name": 3}', "with a name"),
        ('{"name": "rm"}', "there is no tool 'rm'"),
        ('{"name": "assign_task", "arguments": {"agent": "a"}}', "assign_task takes agent, prompt; got agent"),
        ('{"name": "assign_task", "arguments": {"agent": "a", "prompt": 3}}', "must be a JSON object of strings"),
        ('{"name": "wait", "arguments": {"for": "ever"}}', "wait takes no arguments; got for"),
        ('{"name": "wait", "arguments": null}', "must be a JSON object of strings"),
        ("x" * 30_000, "at most 20000 characters"),
    ],
)
def test_a_call_that_is_wrong_is_answered_with_a_sentence(body, sentence):
    call, _ = next_call(f"<tool_call>{body}</tool_call>")
    assert call is not None
    assert sentence in call.error


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_no_text_breaks_the_parser(text):
    next_call(text)
    next_call(f"<tool_call>{text}</tool_call>")


def test_an_unfinished_call_is_not_awaited_for_ever():
    call, _ = next_call("<tool_call>" + "x" * 30_000)
    assert call is not None
    assert "at most 20000 characters" in call.error


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_whatever_the_grammar_allows_is_a_call_that_is_performed(seed):
    rng = np.random.default_rng(seed)
    talk = Conversation({"item-1": 5, "item-4": 9, "item-0": 77}, SUB_AGENTS["large"], Budget(critical_steps=80))
    begun: list[int] = []
    for _ in range(150):
        if talk.over:
            break
        begun.append(int(rng.choice(allowed(begun, talk.state))))
        answer = talk.say(decode([begun[-1]]))
        if answer:
            begun = []
            assert answer != "refused\n" or talk.over
    assert decode(encode(talk.text)) == talk.text
    assert talk.budget.spent["critical_steps"] <= 80
    assert len(talk.done) == talk.completed <= talk.assigned_ever


def test_a_job_in_words_by_hand():
    talk = Conversation({"item-1": 5, "item-4": 9}, SUB_AGENTS["large"], Budget(critical_steps=80))
    for call in (
        written("create_subagent", name="agent-0"),
        written("assign_task", agent="agent-0", prompt="item-1"),
        written("wait"),
        written("finish"),
    ):
        answer = talk.say(call)
    assert answer == "ok\n"
    assert (talk.coverage, talk.finished, talk.agents, talk.completed) == (0.5, True, ["agent-0"], 1)
    assert talk.budget.spent["critical_steps"] == 1 + 1 + SUB_AGENTS["large"].work(5)[0] + 2


def test_calls_out_of_turn_are_refused_and_cost_nothing():
    talk = Conversation({"item-1": 5}, SUB_AGENTS["large"], Budget())
    for call in (written("wait"), written("assign_task", agent="agent-7", prompt="item-1"), "<tool_call>?</tool_call>"):
        assert talk.say(call) == "refused\n"
    assert talk.budget.spent["critical_steps"] == 0


def test_the_same_prompt_comes_again_and_an_episode_always_ends():
    world = LanguageOrchestration(3, prompts=1)
    first = world.reset(seed=0)[0]["tokens"]
    assert np.array_equal(first, world.reset(seed=5)[0]["tokens"])
    rng = np.random.default_rng(0)
    seen, ended = world.reset(seed=0)[0], False
    for _ in range(300):
        seen, _, ended, _, _ = world.step(rng.choice(np.flatnonzero(seen["action_mask"])))
        if ended:
            break
    assert ended
    assert seen["tokens"].max() <= len(PIECES)
