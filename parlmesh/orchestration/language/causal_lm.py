"""The policy network `causal_lm`: a Hugging Face causal model with a value head on its last hidden state.

Without a folder, it builds a tiny model from the policy's specification: the first hidden size is the width, and the
number of sizes is the number of layers. PARLMESH_LANGUAGE_MODEL names the folder of a real model, on the learner and
on every actor; each policy version then brings its weights.
"""

import os
from typing import Any

from torch import Tensor, nn

from parlmesh.errors import ConfigError
from parlmesh.policies import PolicySpec

from ..jobs.observation import ENDS

FOLDER_VARIABLE = "PARLMESH_LANGUAGE_MODEL"


class CausalPolicy(nn.Module):
    """Maps features [B, window + counts] to next-token logits [B, vocabulary] and values [B]."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self._window, self._vocabulary = spec.observation_size - len(ENDS), spec.action.outputs
        if self._window < 1:
            raise ConfigError(
                f"network causal_lm needs tokens and {len(ENDS)} counts, got {spec.observation_size} numbers"
            )
        self.model = causal_model(self._vocabulary, self._window, spec.hidden)
        self.value = nn.Linear(int(self.model.config.hidden_size), 1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Next-token logits and values; left padding is not attended to."""
        shifted = features[:, : self._window].long()
        present = (shifted > 0).long()
        # A row of only padding still needs one position to attend to.
        present[:, -1] = 1
        tokens = (shifted - 1).clamp(0, self._vocabulary - 1)
        positions = (present.cumsum(1) - 1).clamp(min=0)
        found = self.model(
            input_ids=tokens, attention_mask=present, position_ids=positions, output_hidden_states=True, use_cache=False
        )
        last = found.hidden_states[-1][:, -1]
        return found.logits[:, -1, : self._vocabulary], self.value(last).squeeze(1)


def causal_model(vocabulary: int, window: int, hidden: tuple[int, ...]) -> Any:
    """The model in the folder, or a tiny one with random weights; never downloads anything."""
    try:
        from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise ConfigError("network causal_lm needs transformers: pip install parlmesh[language]") from error
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        if not os.path.isdir(folder):
            raise ConfigError(f"{FOLDER_VARIABLE} is {folder!r}, which is not a folder")
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        if model.config.vocab_size < vocabulary:
            size = model.config.vocab_size
            raise ConfigError(f"the model in {folder} has {size} tokens, the environment {vocabulary}")
        return model
    width = hidden[0] if hidden else 32
    heads = 2 if width % 2 == 0 else 1
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=window,
        n_embd=width,
        n_layer=max(len(hidden), 1),
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
