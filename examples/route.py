"""Route questions with low confidence to a stronger system: python examples/route.py [PROBE [MODEL]]."""

import sys
from collections import Counter

from extract import load_model
from probes import load_probe, route

PROBE = sys.argv[1] if len(sys.argv) > 1 else "runs/NAME/probe"  # folder that `make train` prints, or a Hub id
MODEL = sys.argv[2] if len(sys.argv) > 2 else "smollm2-135m-instruct"  # the probe's model: a Hub id or a folder
THRESHOLD = 0.5
QUESTIONS = ["What is the capital of Greece?", "Which chemical element has the symbol Xe?", "What is 3 times 9?"]

model = load_probe(PROBE).attach(*load_model(MODEL))


def majority(questions: list[str]) -> list[str]:
    """Answer each question with the most frequent of 8 samples. You can call a larger model here instead."""
    samples = model.generate(questions, max_new_tokens=16, do_sample=True, temperature=0.7, num_return_sequences=8)
    texts = [text.strip() for text in samples.text]
    return [Counter(texts[i : i + 8]).most_common(1)[0][0] for i in range(0, len(texts), 8)]


found = route(model, majority, QUESTIONS, threshold=THRESHOLD, max_new_tokens=16, do_sample=False)
for question, confidence, who, text in zip(
    QUESTIONS, found.confidence.tolist(), found.answered_by, found.text, strict=True
):
    print(f"{confidence:.2f}  {who}: {question} {(text or '').strip()}")
