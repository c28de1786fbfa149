"""What all asked baselines share of their prompts: the chat around them, and a question in words."""

from __future__ import annotations

from typing import Any

from extract.hashing import sha256_text
from extract.prompts import PromptTemplate
from extract.questions.question import Question


def asking_prompt(policy: dict[str, Any], template: str) -> PromptTemplate:
    """The words around a question that a model is asked about.

    They go into the chat template wherever the tokenizer has one, also where the policy's own prompt is plain text that
    the model continues: a question about oneself is no text to continue. The policy's system message stays.

    Args:
        policy: `policy` of a store's identity.
        template: Text with one ``{question}``.
    """
    chat = policy["model"]["chat_template"] != sha256_text("")
    return PromptTemplate(template, policy["decoding"]["prompt"]["system"] if chat else None, chat)


def question_words(question: Question) -> str:
    """A question's text with its options; of a chat, its messages one after another, each after its role."""
    asked = question.prompt
    return asked if isinstance(asked, str) else "\n".join(f"{one['role']}: {one['content']}" for one in asked)
