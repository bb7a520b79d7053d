"""Write a cloze task for the evaluation harness from held-out text: the last words of a passage, and the next one.

    python benchmarks/cloze.py spdx:test --name licences --out tasks [--rows 150]
    nearlm lm-eval STORE --tasks licences --include-path tasks
    nearlm lm-eval STORE --tasks licences --include-path tasks --no-knn
    python benchmarks/cloze.py spdx:test --name licences --out tasks --store STORE     # both, compared row by row

Passages are spread evenly over the documents. `acc` is the share of rows whose next word is what greedy decoding
writes, `perplexity` that of the word. The task is two local files, NAME.yaml and NAME.jsonl; nothing is downloaded.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from nearlm.text import TextSource

CONTEXT = 50  # words of a passage
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{context}}}}"
doc_to_target: "{{{{target}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}, {{metric: perplexity}}]
"""


def passages(document: str) -> list[dict[str, str]]:
    """Cut a document into passages, each with the word that follows; white space is kept as it is in the text."""
    words = [found for found in _words(document) if found[1].isalpha()]
    rows = []
    for begin, target in words[CONTEXT :: CONTEXT + 1]:
        first = max(0, begin - 8 * CONTEXT)
        first = document.find(" ", first) + 1 if first else 0
        space = document[begin - 1]
        if space.isspace() and first < begin - 1:
            rows.append({"context": document[first : begin - 1], "target": f"{space}{target}"})
    return rows


def _words(document: str) -> list[tuple[int, str]]:
    """Return where each word begins, and the word."""
    found = []
    place = 0
    for word in document.split():
        place = document.index(word, place)
        found.append((place, word))
        place += len(word)
    return found


def compare(store: str, name: str, folder: Path) -> None:
    """Run the task with the memory and without it; print what each row gains, on average."""
    from nearlm.knnlm.harness import run_harness

    logs, right = {}, {}
    for memory in ("off", "on"):
        samples = run_harness(store, [name], memory=memory, include_path=str(folder))["samples"][name]
        samples = sorted(samples, key=lambda sample: sample["doc_id"])
        logs[memory] = np.array([float(sample["filtered_resps"][0][0]) for sample in samples])
        right[memory] = np.array([float(sample["acc"]) for sample in samples])
        print(f"memory {memory}: acc {right[memory].mean():.3f}, perplexity {np.exp(-logs[memory].mean()):.2f}")
    for what, gain in (("acc", right["on"] - right["off"]), ("nats", logs["on"] - logs["off"])):
        error = gain.std(ddof=1) / len(gain) ** 0.5
        print(f"gain of a row, {what}: {gain.mean():+.4f} ± {error:.4f} ({len(gain)} rows, least {gain.min():+.2f})")


def main() -> None:
    """Write the task, and compare on it if a store is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+")
    parser.add_argument("--name", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=150)
    parser.add_argument("--store")
    asked = parser.parse_args()
    texts = ["".join(document.pieces) for document in TextSource(tuple(asked.text)).open().documents()]
    rows = [row for text in texts for row in passages(text)]
    places = np.linspace(0, len(rows) - 1, min(asked.rows, len(rows))).round().astype(int)
    asked.out.mkdir(parents=True, exist_ok=True)
    data = asked.out / f"{asked.name}.jsonl"
    data.write_text("".join(f"{json.dumps(rows[place])}\n" for place in places))
    task = TASK.format(name=asked.name, rows=json.dumps(str(data.resolve())))
    (asked.out / f"{asked.name}.yaml").write_text(task)
    print(f"{len(places)} of {len(rows):,} passages of {len(texts)} documents in {data}")
    if asked.store:
        compare(asked.store, asked.name, asked.out)


if __name__ == "__main__":
    main()
