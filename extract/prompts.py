"""How a question becomes prompt tokens: a template, and the tokenizer's chat template around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from extract.errors import InputError, nearest
from extract.hashing import sha256_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: What can be asked: a text, a chat of ``{"role", "content"}``, or prompt token ids that are used as they are.
Prompt = str | Sequence[dict[str, str]] | Sequence[int]

#: Templates by name. What comes after the question is short, because all that stands before it is read once.
TEMPLATES = {
    "instruction": "Answer in a few words, without a sentence around them.\n\n{question}",
    "cloze": "{question}",
    "qa": "Question: {question}\nAnswer:",
    "number": "{question}\n\nThink step by step. End with a line that has #### and the number alone.",
    "boxed": "{question}\n\nPlease reason step by step, and put your final answer within \\boxed{}.",
    "choice": "{question}\n\nReply with the letter of the right option alone.",
    "choice-steps": "{question}\n\nThink step by step. End with a line that has Answer: and the letter of the right option.",
}


@dataclass(frozen=True)
class PromptTemplate:
    """The words around a question.

    Attributes:
        template: Text with one ``{question}``, or the name of one: instruction, cloze (the text itself, to be continued), qa,
            number, boxed, choice or choice-steps.
        system: System message of the chat; None leaves the chat template's own default.
        chat: Whether the tokenizer's chat template is applied; False gives the plain text.
        thinking: Whether a chat template that can is told to think first; None leaves it to the template.
        shots: Worked examples before the question, taken from train questions, which are never asked.
        examples: The examples themselves, each a question's text and its answer; found from `shots` where they are not given.
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
                f"Expected `prompt.template` to hold {{question}} exactly once or to be one of {', '.join(TEMPLATES)}, but got {self.template!r}.{nearest(self.template, TEMPLATES)} Put {{question}} where the question goes."
            )
        if self.system is not None and not self.chat:
            raise InputError(
                "Expected no `prompt.system` with `prompt.chat` false: plain text has no system message. Put the text into `prompt.template`."
            )
        if self.thinking is not None and not self.chat:
            raise InputError(
                "Expected no `prompt.thinking` with `prompt.chat` false: it is the chat template that is told to think. Leave it out."
            )
        if self.shots < 0 or (self.examples and self.shots not in (0, len(self.examples))):
            raise InputError(
                f"Expected `prompt.shots` to be at least 0, and the number of `prompt.examples` where these are given, but got {self.shots}. Leave one of them out."
            )
        object.__setattr__(self, "shots", self.shots or len(self.examples))

    def record(self) -> dict[str, Any]:
        """Plain JSON types, the form that identities and saved probes hold; what was not asked for is not in it."""
        record: dict[str, Any] = {"template": self.template, "system": self.system, "chat": self.chat}
        if self.thinking is not None:
            record["thinking"] = self.thinking
        if self.shots:
            record["examples"] = [list(example) for example in self._shown()]
        return record

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> PromptTemplate:
        """The template of a record that is as `extract.schemas.PROMPT` says."""
        return cls(**record)

    def messages(self, prompt: str | Sequence[dict[str, str]]) -> list[dict[str, str]]:
        """The chat: system message, examples as turns, and the question; messages are a chat already and stay as they are.

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
        """The plain text that a model continues: examples, each with its answer, and the question.

        A blank line stands between them; a line's end where each is a line of its own, as the facts of a cloze are.

        Raises:
            InputError: The prompt is a chat.

        >>> print(PromptTemplate("cloze", chat=False, examples=(("The capital of Peru is", "Lima"),)).text("The capital of Norway is"))
        The capital of Peru is Lima
        The capital of Norway is
        """
        if not isinstance(prompt, str):
            raise InputError(
                "Expected a question of text because `prompt.chat` is false, but got a chat of messages. Set `prompt.chat` to true."
            )
        examples = self._plain_examples()
        return self._between(examples).join([*examples, self._filled(prompt)])

    @property
    def next_question(self) -> str:
        r"""What stands between an answer and the next question in plain text, and so where an answer ends.

        >>> PromptTemplate("qa", chat=False, examples=(("1 + 1?", "2"),)).next_question
        '\n\nQuestion:'
        """
        return self._between(self._plain_examples()) + self.template.partition("{question}")[0].rstrip()

    def encode(self, tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
        """Prompt token ids, ending just before the first answer token.

        Raises:
            InputError: An empty prompt, or a chat template is asked for and the tokenizer has none, or none that thinks.
        """
        if isinstance(prompt, str):
            if not prompt.strip():
                raise InputError(
                    "Expected `prompt` to be a question, but got an empty text. Give the text of the question."
                )
            if not self.chat:
                return self._checked(tokenizer(self.text(prompt))["input_ids"])
            return self._checked(self._encode_chat(tokenizer, self.messages(prompt)))
        parts: list[Any] = list(prompt)
        if parts and isinstance(parts[0], dict):
            return self._checked(self._encode_chat(tokenizer, parts))
        return self._checked([int(token) for token in parts])

    def _plain_examples(self) -> list[str]:
        return [_joined(self._filled(asked), answer) for asked, answer in self._shown()]

    def _between(self, examples: Iterable[str]) -> str:
        return "\n\n" if any("\n" in one for one in (self.template, *examples)) else "\n"

    def _filled(self, question: str) -> str:
        return self.template.replace("{question}", question)

    def _shown(self) -> tuple[tuple[str, str], ...]:
        if self.shots != len(self.examples):
            raise InputError(
                f"Expected the {self.shots} worked examples of `prompt.shots`, but they are not there yet. Take the policy that `StoreRecipe.load` gives, or give `prompt.examples`."
            )
        return self.examples

    def _encode_chat(self, tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> list[int]:
        if tokenizer.chat_template is None:
            raise InputError(
                "Expected a tokenizer with a chat template because `prompt.chat` is true, but this one has none. Set `prompt.chat` to false and write the whole prompt in `prompt.template`."
            )
        options: dict[str, Any] = {}
        if self.thinking is not None:
            if "enable_thinking" not in str(tokenizer.chat_template):
                raise InputError(
                    f"Expected a chat template that can think or not because `prompt.thinking` is {str(self.thinking).lower()}, but this one does not look at enable_thinking. Leave `prompt.thinking` out."
                )
            options["enable_thinking"] = self.thinking
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **options)
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    @staticmethod
    def _checked(ids: list[int]) -> list[int]:
        if not ids:
            raise InputError("Expected `prompt` to hold at least one token, but it is empty. Give a question.")
        return ids


def _joined(asked: str, answer: str) -> str:
    """A question with its answer behind it, a space between them where there is none."""
    return asked + answer if asked[-1:].isspace() else f"{asked} {answer}"


def template_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of the tokenizer's chat template; of the empty text when it has none."""
    return sha256_text(str(tokenizer.chat_template or ""))
