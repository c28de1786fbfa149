"""Answer only questions with a confidence of at least a threshold: python examples/abstain.py [PROBE]."""

import sys

from extract import load_model
from probes import load_probe

PROBE = sys.argv[1] if len(sys.argv) > 1 else "runs/NAME/probe"  # folder that `make train` prints, or a Hub id
THRESHOLD = 0.5
QUESTIONS = [
    "What is the capital of Greece?",
    "What is the capital of Costa Rica?",
    "What is the capital of Australia?",
    "What is the chemical symbol of chlorine?",
]

hf_model, tokenizer = load_model()
model = load_probe(PROBE).attach(hf_model, tokenizer)

confidence = model.score(QUESTIONS).confidence  # one forward pass per question, before anything is generated
for question, value in zip(QUESTIONS, confidence.tolist(), strict=True):
    if value >= THRESHOLD:
        (answer,) = model.generate(question, max_new_tokens=16, do_sample=False).text
    else:
        answer = "I don't know."
    print(f"{value:.2f}  {question} {answer.strip()}")
