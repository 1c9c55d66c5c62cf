from __future__ import annotations

import torch
from transformers import Qwen3ForCausalLM

from trainer_integration.tiny_trainer.addition import question, split
from trainer_integration.tiny_trainer.model import build_model, build_tokenizer
from trainer_integration.tiny_trainer.sampling import answer_log_probs, evaluate_exact, sample
from trainer_integration.tiny_trainer.tokens import (
    EOS,
    MAX_NEW_TOKENS,
    PAD,
    encode_answers,
    encode_questions,
    rewards_of,
    until_eos,
)

PAIRS = split(0).train[:64]
QUESTIONS = encode_questions(PAIRS)


def test_rows_of_tokens_are_those_of_the_saved_tokenizer() -> None:
    tokenizer = build_tokenizer()
    assert QUESTIONS.tolist() == [tokenizer(question(pair)).input_ids for pair in PAIRS]


def test_the_default_model_has_three_quarters_of_a_million_parameters_and_32_tied_embeddings() -> None:
    model = build_model(0)
    assert 700_000 < sum(parameter.numel() for parameter in model.parameters()) < 780_000
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.shape[0] == 32


def test_greedy_sampling_agrees_with_the_generate_of_transformers(model: Qwen3ForCausalLM) -> None:
    ours, _ = sample(model, QUESTIONS, samples=1, temperature=0.0)
    theirs = model.generate(
        QUESTIONS, attention_mask=torch.ones_like(QUESTIONS), max_new_tokens=MAX_NEW_TOKENS, do_sample=False
    )
    assert torch.equal(ours[:, : theirs.shape[1] - QUESTIONS.shape[1]], theirs[:, QUESTIONS.shape[1] :])


def test_nothing_follows_the_end_of_an_answer(model: Qwen3ForCausalLM) -> None:
    answers, log_probs = sample(model, QUESTIONS, samples=16, temperature=1.0, generator=torch.Generator().manual_seed(0))
    chosen = until_eos(answers)
    assert not chosen.all(), "no answer of this test ended early"
    assert (answers[~chosen] == PAD).all()
    assert (log_probs[~chosen] == 0).all()
    assert (log_probs[chosen] < 0).all()


def test_log_probabilities_of_sampling_equal_those_of_one_plain_forward(model: Qwen3ForCausalLM) -> None:
    answers, log_probs = sample(model, QUESTIONS, samples=4, temperature=1.0, generator=torch.Generator().manual_seed(0))
    rows = torch.cat([QUESTIONS.repeat_interleave(4, dim=0), answers], dim=1)
    logits = model(rows[:, :-1], use_cache=False, logits_to_keep=MAX_NEW_TOKENS).logits
    plain = torch.log_softmax(logits, dim=-1).gather(2, answers[:, :, None])[:, :, 0]
    chosen = until_eos(answers)
    torch.testing.assert_close(log_probs[chosen], plain[chosen].detach(), atol=1e-5, rtol=0)
    torch.testing.assert_close(answer_log_probs(model, QUESTIONS, answers), plain, atol=1e-5, rtol=0)


def test_sharing_the_prefill_of_a_question_keeps_the_gradient(model: Qwen3ForCausalLM) -> None:
    answers, _ = sample(model, QUESTIONS, samples=4, temperature=1.0, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(answers.shape, generator=torch.Generator().manual_seed(1))
    apart = QUESTIONS.repeat_interleave(4, dim=0)
    shared = torch.autograd.grad((weight * answer_log_probs(model, QUESTIONS, answers)).sum(), list(model.parameters()))
    single = torch.autograd.grad((weight * answer_log_probs(model, apart, answers)).sum(), list(model.parameters()))
    for ours, theirs in zip(shared, single, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)


def test_a_right_answer_that_does_not_end_is_wrong() -> None:
    right = encode_answers(PAIRS)
    assert rewards_of(PAIRS, right).tolist() == [1.0] * len(PAIRS)
    endless = torch.where(right == EOS, right[:, :1], right)
    assert rewards_of(PAIRS, endless).tolist() == [0.0] * len(PAIRS)


def test_a_model_that_knows_nothing_scores_next_to_nothing(model: Qwen3ForCausalLM) -> None:
    assert evaluate_exact(model, PAIRS) < 0.1
