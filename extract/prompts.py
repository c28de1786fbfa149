"""Conversion of questions to prompt tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from extract.errors import InputError, nearest
from extract.hashing import sha256_text

#: A string, a chat (messages with ``role`` and ``content``), or prompt token ids, which are used unchanged.
Prompt = str | Sequence[dict[str, str]] | Sequence[int]

#: Templates by name. Only the text before the question is cached, so the templates put little text after the question.
TEMPLATES = {
    "instruction": "Answer in a few words, without a sentence around them.\n\n{question}",
    "cloze": "{question}",
    "qa": "Question: {question}\nAnswer:",
    "number": "{question}\n\nThink step by step. End with a line that has #### and the number alone.",
    "boxed": "{question}\n\nPlease reason step by step, and put your final answer within \\boxed{}.",
    "choice": "{question}\n\nReply with the letter of the right option alone.",
    "choice-steps": (
        "{question}\n\nThink step by step. End with a line that has Answer: and the letter of the right option."
    ),
}


@dataclass(frozen=True)
class PromptTemplate:
    """Template that turns a question into a prompt.

    Attributes:
        template: Text that contains ``{question}`` once, or the name of a template: instruction, cloze (only the
            question, which the model continues), qa, number, boxed, choice or choice-steps.
        system: System message of the chat. If None, the default of the chat template is used.
        chat: Whether the tokenizer's chat template is applied. If False, the prompt is plain text.
        thinking: Whether the model thinks before it answers. By default, the chat template decides.
        shots: Number of worked examples before each question. No question in the store is used as an example.
        examples: Worked examples, as pairs of a question and an answer. If empty, `shots` examples are chosen.
    """

    template: str = "{question}"
    system: str | None = None
    chat: bool = True
    thinking: bool | None = None
    shots: int = 0
    examples: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "template", TEMPLATES.get(self.template, self.template))
        object.__setattr__(self, "examples", tuple((asked, answer) for asked, answer in self.examples))
        if self.template.count("{question}") != 1:
            raise InputError(
                "Expected `prompt.template` to contain {question} exactly once or to be one of "
                f"{', '.join(TEMPLATES)}, but got {self.template!r}.{nearest(self.template, TEMPLATES)}"
            )
        if self.system is not None and not self.chat:
            raise InputError(
                f"Expected `prompt.system` to be unset if `prompt.chat` is false, but got {self.system!r}. Plain text "
                "has no system message. Move the text to `prompt.template`."
            )
        if self.thinking is not None and not self.chat:
            raise InputError(
                "Expected `prompt.thinking` to be unset if `prompt.chat` is false, but got "
                f"{str(self.thinking).lower()}. Thinking is an option of the chat template. Remove `prompt.thinking`."
            )
        if self.shots < 0 or (self.examples and self.shots not in (0, len(self.examples))):
            raise InputError(
                "Expected `prompt.shots` to be at least 0, and equal to the number of `prompt.examples` if both "
                f"options are set, but got {self.shots}. Set only one of them."
            )
        object.__setattr__(self, "shots", self.shots or len(self.examples))

    def record(self) -> dict[str, Any]:
        """Return the template as plain JSON types, without unused fields."""
        record: dict[str, Any] = {"template": self.template, "system": self.system, "chat": self.chat}
        if self.thinking is not None:
            record["thinking"] = self.thinking
        if self.shots:
            record["examples"] = [list(example) for example in self._shown()]
        return record

    def messages(self, prompt: str | Sequence[dict[str, str]]) -> list[dict[str, str]]:
        """Return the chat messages of a prompt: system message, examples, question. A chat is returned unchanged.

        >>> [one["content"] for one in PromptTemplate("Q: {question}", examples=(("1 + 1?", "2"),)).messages("1 + 2?")]
        ['Q: 1 + 1?', '2', 'Q: 1 + 2?']
        """
        if not isinstance(prompt, str):
            return list(prompt)
        turns = [] if self.system is None else [("system", self.system)]
        for asked, answer in self._shown():
            turns += [("user", self._filled(asked)), ("assistant", answer)]
        return [{"role": role, "content": content} for role, content in (*turns, ("user", self._filled(prompt)))]

    def text(self, prompt: str | Sequence[dict[str, str]]) -> str:
        r"""Return the prompt as plain text: the examples with their answers, then the question.

        They are separated by blank lines. If the template and the examples contain no line breaks, single line breaks
        are used instead. Raises an `InputError` if the prompt is a chat.

        >>> PromptTemplate("cloze", chat=False, examples=(("1 + 1 =", "2"),)).text("1 + 2 =")
        '1 + 1 = 2\n1 + 2 ='
        """
        if not isinstance(prompt, str):
            raise InputError(
                "Expected the question to be a string if `prompt.chat` is false, but got chat messages. Set "
                "`prompt.chat` to true."
            )
        examples, between = self._plain_examples()
        return between.join([*examples, self._filled(prompt)])

    @property
    def next_question(self) -> str:
        r"""Text between an answer and the next question in a plain-text prompt. It can be used as a stop string.

        >>> PromptTemplate("qa", chat=False, examples=(("1 + 1?", "2"),)).next_question
        '\n\nQuestion:'
        """
        return self._plain_examples()[1] + self.template.partition("{question}")[0].rstrip()

    def encode(self, tokenizer: Any, prompt: Prompt) -> list[int]:
        """Return the token ids of the whole prompt, up to the start of the model's answer.

        Raises:
            InputError: If the prompt is empty, if a required chat template is missing, or if `thinking` is set but the
                chat template has no such option.
        """
        given: Any = prompt
        if not (given.strip() if isinstance(given, str) else len(given)):
            raise InputError("Expected `prompt` to have at least one token, but it is empty. Pass a question.")
        if isinstance(given, str) or isinstance(given[0], dict):
            return self.tokenize(tokenizer, self.rendered(tokenizer, given), given)
        return [int(token) for token in given]

    def rendered(self, tokenizer: Any, prompt: str | Sequence[dict[str, str]]) -> str:
        """Return the whole prompt as text. For a chat, the chat template is applied."""
        return self._rendered_chat(tokenizer, self.messages(prompt)) if self.is_chat(prompt) else self.text(prompt)

    def is_chat(self, prompt: str | Sequence[dict[str, str]]) -> bool:
        """Whether the chat template is applied to a prompt."""
        return self.chat or not isinstance(prompt, str)

    def tokenize(self, tokenizer: Any, text: str, prompt: str | Sequence[dict[str, str]]) -> list[int]:
        """Tokenize `text`, which begins with the rendered `prompt`.

        Special tokens are added only if the chat template is not applied.
        """
        return tokenizer(text, add_special_tokens=not self.is_chat(prompt))["input_ids"]

    def _plain_examples(self) -> tuple[list[str], str]:
        """Return the examples as plain text, and the separator between them."""
        filled = [(self._filled(asked), answer) for asked, answer in self._shown()]
        examples = [asked + answer if asked[-1:].isspace() else f"{asked} {answer}" for asked, answer in filled]
        return examples, "\n\n" if any("\n" in text for text in (self.template, *examples)) else "\n"

    def _filled(self, question: str) -> str:
        return self.template.replace("{question}", question)

    def _shown(self) -> tuple[tuple[str, str], ...]:
        if self.shots != len(self.examples):
            raise InputError(
                f"Expected {self.shots} worked examples, as set by `prompt.shots`, but they have not been chosen yet. "
                "Use the policy that `StoreRecipe.load` returns, or set `prompt.examples`."
            )
        return self.examples

    def _rendered_chat(self, tokenizer: Any, messages: list[dict[str, str]]) -> str:
        if tokenizer.chat_template is None:
            raise InputError(
                "Expected the tokenizer to have a chat template, because `prompt.chat` is true, but it has none. "
                "Set `prompt.chat` to false and write the whole prompt in `prompt.template`."
            )
        options = {} if self.thinking is None else {"enable_thinking": self.thinking}
        if options and "enable_thinking" not in str(tokenizer.chat_template):
            raise InputError(
                f"Expected `prompt.thinking` to be unset, but got {str(self.thinking).lower()}. This model's chat "
                "template has no enable_thinking option. Remove `prompt.thinking`."
            )
        return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **options))


def template_hash(tokenizer: Any) -> str:
    """Return the SHA-256 of the tokenizer's chat template. A missing template is hashed as an empty string."""
    return sha256_text(str(tokenizer.chat_template or ""))
