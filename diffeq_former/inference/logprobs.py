"""Log-probabilities in responses, as OpenAI's protocols have them.

https://platform.openai.com/docs/api-reference/completions/object
https://platform.openai.com/docs/api-reference/chat/object
"""

from typing import NamedTuple

from diffeq_former.data.tokenizers import Tokenizer
from diffeq_former.inference.scores import TokenScore

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # a part of a character decodes to this


class ScoredText(NamedTuple):
    """The text of one token with its score."""

    text: str
    log_p: float | None  # nats; None: nothing is before the token
    top: list[tuple[str, float]]  # the most likely tokens, in descending order
    offset: int  # characters of the tokens before it


class ScoredTexts:
    """Turns the scores of one choice into those of texts, as they come.

    Args:
      tokenizer: The model's tokenizer.
      context: The token ids that the model reads before the choice.
      num_added: How many of them are not in the request.
      echo: Whether the prompt is part of the choice.
    """

    def __init__(
        self, tokenizer: Tokenizer, context: list[int], num_added: int, echo: bool
    ):
        self._tokenizer = tokenizer
        self._first = TokenScore(context[0], None, [])
        self._num_done = num_added if echo else len(context)  # tokens
        self._offset = 0 if echo else len(tokenizer.decode(context[num_added:]))

    def update(self, scores: list[TokenScore]) -> list[ScoredText]:
        """Return the new ones among the scores of all tokens but the first."""
        known = [self._first, *scores]
        new, self._num_done = known[self._num_done :], max(self._num_done, len(known))
        return [self._with_text(score) for score in new]

    def _with_text(self, score: TokenScore) -> ScoredText:
        text, offset = self._tokenizer.decode([score.token]), self._offset
        self._offset += len(text)
        top = [(self._tokenizer.decode([i]), log_p) for i, log_p in score.top]
        return ScoredText(text, score.log_p, top, offset)


def for_completion(scored: list[ScoredText]) -> dict:
    """Return the field `logprobs` of a choice of a completion.

    Of several tokens with one text, the most likely one counts.
    """
    tops = []
    for x in scored:
        tops.append(None if x.log_p is None else {})
        for text, log_p in (*x.top, (x.text, x.log_p)) if x.log_p is not None else ():
            tops[-1].setdefault(text, log_p)
    return {
        "tokens": [x.text for x in scored],
        "token_logprobs": [x.log_p for x in scored],
        "top_logprobs": tops,
        "text_offset": [x.offset for x in scored],
    }


def for_chat(scored: list[ScoredText]) -> dict:
    """Return the field `logprobs` of a choice of a chat."""

    def entry(text: str, log_p: float) -> dict:
        is_whole = _UNKNOWN not in text
        known = list(text.encode()) if is_whole else None
        return {"token": text, "logprob": log_p, "bytes": known}

    content = [
        entry(x.text, x.log_p) | {"top_logprobs": [entry(*top) for top in x.top]}
        for x in scored
    ]
    return {"content": content, "refusal": None}
