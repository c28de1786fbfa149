"""Answer confident questions cheaply, and send the others to a stronger system: python examples/route.py [PROBE]."""

import sys
from collections import Counter

from extract import load_model
from probes import load_probe

PROBE = sys.argv[1] if len(sys.argv) > 1 else "runs/NAME/probe"  # folder that `make train` prints, or a Hub id
THRESHOLD = 0.5
QUESTIONS = ["What is the capital of Greece?", "Which chemical element has the symbol Xe?", "What is 3 times 9?"]

hf_model, tokenizer = load_model()
model = load_probe(PROBE).attach(hf_model, tokenizer)


def cheap(question: str) -> str:
    """Answer greedily."""
    return model.generate(question, max_new_tokens=16, do_sample=False).text[0].strip()


def strong(question: str) -> str:
    """Answer with the majority of 8 samples. Any function can take its place, such as a request to a larger model."""
    samples = model.generate(question, max_new_tokens=16, do_sample=True, temperature=0.7, num_return_sequences=8)
    return Counter(text.strip() for text in samples.text).most_common(1)[0][0]


for question, confidence in zip(QUESTIONS, model.score(QUESTIONS).confidence.tolist(), strict=True):
    system = cheap if confidence >= THRESHOLD else strong
    print(f"{confidence:.2f}  {system.__name__}: {question} {system(question)}")
