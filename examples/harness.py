"""A cloze task from a text of one's own, with the memory and without.

Usage: python examples/harness.py mem text.txt
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from nearlm.knnlm.harness import run_harness

TASK = """task: cloze
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{rows}"}}}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{context}}}}"
doc_to_target: "{{{{target}}}}"
metric_list: [{{metric: acc}}, {{metric: perplexity}}]
"""

store, text = sys.argv[1:3]
words = Path(text).read_text().split()
rows = [{"context": " ".join(words[max(0, n - 50) : n]), "target": f" {words[n]}"} for n in range(5, len(words), 7)]
with TemporaryDirectory() as folder:
    data = Path(folder) / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    (Path(folder) / "cloze.yaml").write_text(TASK.format(rows=data))
    for memory in ("on", "off"):
        found = run_harness(store, ["cloze"], memory=memory, include_path=folder, limit=200)["results"]["cloze"]
        print(f"memory {memory}: accuracy {found['acc,none']:.3f}, perplexity {found['perplexity,none']:.2f}")
