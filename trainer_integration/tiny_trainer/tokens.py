"""Questions and answers as rows of token ids, the same ids that the saved tokenizer gives.

All questions have one length (`<bos>12+34=`, 7 tokens) and all answers fit `MAX_NEW_TOKENS`, so a batch is a rectangle.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer_integration.tiny_trainer.addition import ANSWER_DIGITS, Pair, answer, question, reward
from trainer_integration.tiny_trainer.model import CHARACTERS, SPECIAL

MAX_NEW_TOKENS = ANSWER_DIGITS + 1  # the digits and <eos>
PAD, BOS, EOS = (SPECIAL.index(token) for token in ("<pad>", "<bos>", "<eos>"))
_VOCABULARY = (*SPECIAL, *CHARACTERS)
_ID = {token: index for index, token in enumerate(_VOCABULARY)}


def encode_questions(pairs: Sequence[Pair]) -> Tensor:
    """int64 [pairs, 7]."""
    return torch.tensor([[BOS, *(_ID[character] for character in question(pair))] for pair in pairs])


def encode_answers(pairs: Sequence[Pair]) -> Tensor:
    """int64 [pairs, MAX_NEW_TOKENS], each ending in `<eos>`."""
    return torch.tensor([[*(_ID[character] for character in answer(pair)), EOS] for pair in pairs])


def until_eos(answers: Tensor) -> Tensor:
    """bool, of the same shape: true up to and with the first `<eos>` of each row, which is what the model chose."""
    ended = (answers == EOS).int()
    return ended.cumsum(-1) - ended == 0


def rewards_of(pairs: Sequence[Pair], answers: Tensor) -> Tensor:
    """float32 [pairs]: exact match; an answer that did not end with `<eos>` is wrong."""
    return torch.tensor([_reward(pair, row) for pair, row in zip(pairs, answers.tolist(), strict=True)])


def _reward(pair: Pair, row: list[int]) -> float:
    if EOS not in row:
        return 0.0
    return reward(pair, "".join(_VOCABULARY[token] for token in row[: row.index(EOS)]))
