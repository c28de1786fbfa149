"""Answer only questions whose confidence is at or above a threshold: python examples/abstain.py [PROBE [MODEL]]."""

import sys

from extract import load_model
from probes import abstain, load_probe

PROBE = sys.argv[1] if len(sys.argv) > 1 else "runs/NAME/probe"  # folder that `make train` prints, or a Hub id
MODEL = sys.argv[2] if len(sys.argv) > 2 else "smollm2-135m-instruct"  # the probe's model: a Hub id or a folder
THRESHOLD = 0.5  # `python -m applications decide` finds thresholds with a guaranteed bound on the risk
QUESTIONS = [
    "What is the capital of Greece?",
    "What is the capital of Costa Rica?",
    "What is the capital of Australia?",
    "What is the chemical symbol of chlorine?",
]

model = load_probe(PROBE).attach(*load_model(MODEL))

# runs one forward pass per question, and generates answers only to questions that reach the threshold
found = abstain(model, QUESTIONS, threshold=THRESHOLD, max_new_tokens=16, do_sample=False)
for question, confidence, text in zip(QUESTIONS, found.confidence.tolist(), found.text, strict=True):
    print(f"{confidence:.2f}  {question} {'I do not know.' if text is None else text.strip()}")
