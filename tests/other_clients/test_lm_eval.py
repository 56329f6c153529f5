"""lm-evaluation-harness scores texts with the model `local-completions`, and has questions answered with it and with
`local-chat-completions`. docs/clients.md has its version.
"""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from orcastream import demo
from tests.other_clients.conftest import Ask

pytestmark = pytest.mark.server


def test_likelihoods_equal_those_of_the_model(ask: Ask) -> None:
    told = ask("lm_eval_client", "lm_eval", "ids")
    tokenizer = AutoTokenizer.from_pretrained(demo.MODEL_DIR)
    model = AutoModelForCausalLM.from_pretrained(demo.MODEL_DIR, dtype=torch.float32)
    for (context, continuation), (logprob, is_greedy) in zip(told["asked"], told["found"], strict=True):
        begin = len(tokenizer(context, add_special_tokens=False)["input_ids"])
        ids = tokenizer(context + continuation, add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            rows = model(torch.tensor([ids])).logits[0, begin - 1 : -1].double().log_softmax(dim=-1)
        wanted = torch.tensor(ids[begin:])
        assert logprob == pytest.approx(rows.gather(1, wanted.unsqueeze(1)).sum().item(), abs=1e-3)
        assert is_greedy is bool((rows.argmax(dim=1) == wanted).all())


@pytest.mark.parametrize("case", ["text", "chat"])
def test_questions_are_answered(ask: Ask, case: str) -> None:
    assert [text.strip() for text in ask("lm_eval_client", "lm_eval", case)["texts"]] == ["7", "o-r-c-a"]
