"""Compute confidences before, during and after generation: python examples/confidence.py [PROBE [MODEL]]."""

import sys

from extract import load_model
from probes import load_probe

PROBE = sys.argv[1] if len(sys.argv) > 1 else "runs/NAME/probe"  # folder that `make train` prints, or a Hub id
MODEL = sys.argv[2] if len(sys.argv) > 2 else "smollm2-135m-instruct"  # the probe's model: a Hub id or a folder
QUESTIONS = [
    "What is the capital of Greece?",
    "What is the capital of Costa Rica?",
    "Translate 'good morning' to Nahuatl.",  # unlike any training question
]

hf_model, tokenizer = load_model(MODEL)
model = load_probe(PROBE).attach(hf_model, tokenizer)

print("before an answer is generated:")
found = model.score(QUESTIONS)
for question, confidence, novelty in zip(QUESTIONS, found.confidence, found.novelty, strict=True):
    print(f"confidence {confidence:.2f}, novelty {novelty:.2f}: {question}")

print("together with the answers:")
answers = model.generate(QUESTIONS, max_new_tokens=16, do_sample=False)
for text, confidence in answers:
    print(f"confidence {confidence:.2f}: {text.strip()}")

print("while an answer is generated:")
for step in model.stream(QUESTIONS[2], max_new_tokens=16, do_sample=False):
    print(f"confidence {step.confidence:.2f}: {step.text.strip()}")
