"""Log-probabilities of continuations, from one teacher-forced pass over a prompt and all its continuations.

The continuations follow the prompt in one sequence. A tree-shaped attention mask hides them from each other. The
position ids of each continuation begin directly after those of the prompt.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from extract.errors import InputError
from extract.models.loading import check_prompts
from extract.prompts import PromptTemplate
from extract.signals.lens import LOGITS_AT_ONCE
from extract.signals.model_parts import ModelHead, decoder_of
from extract.signals.reader import by_length, right_padded
from extract.signals.shared_prompt import SharedPrompt, can_share, read_prefix

#: Maximum number of tokens in a batch. Batches shrink if memory runs out.
BATCH_TOKENS = 2048
#: Maximum relative difference between hidden states that should be equal, to allow for rounding in bfloat16.
_ROUNDING = 0.05


class Item(NamedTuple):
    """A prompt and its continuations as token ids. Neither the prompt nor any continuation is empty."""

    prompt: Sequence[int]
    continuations: Sequence[Sequence[int]]

    @property
    def branches(self) -> bool:
        """Whether at least two continuations have more than one token. If so, a tree mask is needed."""
        return sum(len(continuation) > 1 for continuation in self.continuations) > 1


def encode_item(
    template: PromptTemplate, tokenizer: Any, prompt: str | Sequence[dict[str, str]], continuations: Sequence[str]
) -> tuple[Item, Item]:
    """Tokenize a question's prompt and continuations as lm-evaluation-harness does.

    The prompt is tokenized together with each continuation. If the prompt alone has n tokens, all tokens after the
    first n belong to the continuation. Whitespace at the end of the prompt is moved to the continuation. Without such
    whitespace, a space is inserted before the continuation, except in a chat.

    Returns the item, and a second item for the unconditional log-probabilities. The prompt of the second item is the
    output of `first_token`.
    """
    text = template.rendered(tokenizer, prompt)
    context = text.rstrip()
    spaces = text[len(context) :]
    delimiter = "" if spaces or template.is_chat(prompt) else " "
    ids = template.tokenize(tokenizer, context, prompt)
    wholes = [template.tokenize(tokenizer, f"{context}{spaces}{delimiter}{one}", prompt) for one in continuations]
    alone = [tokenizer(f"{delimiter}{one}", add_special_tokens=False)["input_ids"] for one in continuations]
    return Item(ids, [whole[len(ids) :] for whole in wholes]), Item(first_token(tokenizer), alone)


def first_token(tokenizer: Any) -> list[int]:
    """Return the token to put before a text without a prompt: BOS, or EOS if there is no BOS token.

    Raises:
        InputError: If the tokenizer has neither.
    """
    token = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    if token is None:
        raise InputError(
            "Expected a tokenizer with a beginning-of-sequence or end-of-sequence token, but it has neither. Set "
            "`eos_token` in tokenizer_config.json, or pass a different --model."
        )
    return [token]


@torch.inference_mode()
def score(
    model: Any,
    items: Sequence[Item],
    batch_tokens: int = BATCH_TOKENS,
    progress: Callable[[int, int], object] = lambda n_items, n_tokens: None,
) -> list[list[float]]:
    """Compute the log-probability of each continuation after its prompt.

    If the model supports tree masks, each prompt is read once for all its continuations.

    Args:
        batch_tokens: Maximum number of tokens in a batch, including padding.
        progress: Callback that receives the numbers of items and tokens in each finished batch.

    Returns:
        For each item, the log-probability of each continuation in nats, summed over its tokens.

    Raises:
        InputError: If a prompt or a continuation is empty or too long, or a logit is NaN.
    """
    if not all(item.prompt and all(item.continuations) for item in items):
        raise InputError("Expected prompts and continuations of at least one token, but some are empty. Remove them.")
    check_prompts(model, [[*item.prompt, *continuation] for item in items for continuation in item.continuations])
    rows = [(i, item) for i, item in enumerate(items)]
    if any(item.branches for item in items) and not supports_trees(model):
        rows = [(i, Item(item.prompt, [one])) for i, item in rows for one in item.continuations]
    shared = read_prefix(model, [item.prompt for _, item in rows])
    n_before = 0 if shared is None else len(shared.tokens)
    lengths = [len(item.prompt) + sum(len(one) - 1 for one in item.continuations) for _, item in rows]
    head, n_done = ModelHead(model), 0
    found: dict[int, list[float]] = {}
    for batch in by_length(lengths, batch_tokens, n_before):
        scored = _score_batch(model, head, [rows[row][1] for row in batch], shared)
        found |= zip(batch, scored, strict=True)
        progress(len(found) * len(items) // len(rows) - n_done, sum(lengths[row] for row in batch))
        n_done = len(found) * len(items) // len(rows)
    scores: list[list[float]] = [[] for _ in items]
    for row, (i, _) in enumerate(rows):
        scores[i] += found[row]
    if any(math.isnan(value) for of_item in scores for value in of_item):
        raise InputError(
            f"Expected finite logits, but the model returns NaN in {str(model.dtype).removeprefix('torch.')}. "
            "Load the model in float32 or bfloat16."
        )
    return scores


def _score_batch(model: Any, head: ModelHead, items: Sequence[Item], shared: SharedPrompt | None) -> list[list[float]]:
    n_before = 0 if shared is None else len(shared.tokens)
    ids = right_padded([_inputs(item)[n_before:] for item in items], model.device)
    options: dict[str, Any] = {}
    if any(item.branches for item in items):
        branches, positions = zip(*map(_branches_and_positions, items), strict=True)
        branch = right_padded([of_item[n_before:] for of_item in branches], model.device)
        options["attention_mask"] = tree_mask(branch, n_before, model.dtype)
        options["position_ids"] = right_padded([of_item[n_before:] for of_item in positions], model.device)
    cache = None if shared is None else shared.cache(len(items), grows=False)
    output = decoder_of(model)(input_ids=ids, past_key_values=cache, use_cache=cache is not None, **options)
    places = [(row, place - n_before) for row, item in enumerate(items) for place in _sources(item)]
    row, place = torch.tensor(places, device=model.device).T
    targets = [token for item in items for one in item.continuations for token in one]
    logprobs = token_logprobs(head, output.last_hidden_state[row, place], torch.tensor(targets, device=model.device))
    of_continuation = iter(logprobs.split([len(one) for item in items for one in item.continuations]))
    return [[float(next(of_continuation).sum()) for _ in item.continuations] for item in items]


def token_logprobs(head: ModelHead, states: Tensor, targets: Tensor) -> Tensor:
    """Compute the log-probability of each target token, [token] float64.

    `states` [token, d_model] contains the hidden state from which each target is predicted.
    """
    size = head.chunk_size(LOGITS_AT_ONCE)
    chunks = zip(states.split(size), targets.split(size), strict=True)
    return torch.cat([head(h).float().log_softmax(-1).gather(-1, y[:, None])[:, 0].double().cpu() for h, y in chunks])


def tree_mask(branch: Tensor, n_before: int, dtype: torch.dtype) -> Tensor:
    """Return an additive attention mask [row, 1, token, n_before + token] for prompts with several continuations.

    A token attends to itself, the `n_before` cached tokens, and earlier tokens of its own branch and of branch 0.
    `branch` [row, token] int64 is 0 in the prompt and in padding. The continuations are numbered from 1.
    """
    token = torch.arange(branch.shape[1], device=branch.device)
    visible = (branch[:, None] == 0) | (branch[:, None] == branch[:, :, None])
    hidden = ~(visible & (token <= token[:, None]))
    mask = torch.zeros(hidden.shape, dtype=dtype, device=branch.device).masked_fill_(hidden, torch.finfo(dtype).min)
    return torch.nn.functional.pad(mask, (n_before, 0))[:, None]


@torch.inference_mode()
def supports_trees(model: Any) -> bool:
    """Use a short prompt to test whether a model respects tree masks and position ids."""
    if not can_share(model):
        return False
    branch = torch.tensor([[0, 0, 1, 1, 1, 2, 2]], device=model.device)
    positions = torch.tensor([[0, 1, 2, 3, 4, 2, 3]], device=model.device)
    ids, decoder = torch.arange(7, device=model.device)[None], decoder_of(model)
    try:
        tree = decoder(input_ids=ids, attention_mask=tree_mask(branch, 0, model.dtype), position_ids=positions)
    except (TypeError, ValueError, RuntimeError):  # for example, ALiBi needs a two-dimensional mask
        return False
    plain = decoder(input_ids=ids[branch != 1][None])
    after_tree, after_plain = (output.last_hidden_state[0, -1].float() for output in (tree, plain))
    return bool((after_tree - after_plain).norm() < _ROUNDING * after_plain.norm())


def _inputs(item: Item) -> list[int]:
    """Return the tokens to read: the prompt, and each continuation without its last token."""
    return [*item.prompt, *(token for one in item.continuations for token in one[:-1])]


def _branches_and_positions(item: Item) -> tuple[list[int], list[int]]:
    """Return the branch and the position id of each token that `_inputs` returns."""
    n, lengths = len(item.prompt), [len(one) - 1 for one in item.continuations]
    branches = [number for number, length in enumerate(lengths, 1) for _ in range(length)]
    return [0] * n + branches, [*range(n), *(n + step for length in lengths for step in range(length))]


def _sources(item: Item) -> Iterator[int]:
    """For each token of a continuation, yield the index of the previous token in `_inputs(item)`."""
    start = len(item.prompt)
    for one in item.continuations:
        yield len(item.prompt) - 1
        yield from range(start, start + len(one) - 1)
        start += len(one) - 1
