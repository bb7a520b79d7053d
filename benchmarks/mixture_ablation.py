"""What each source and each group of features is worth to a mixture of any store, and what the sources cost.

    python benchmarks/mixture_ablation.py STORE --valid spdx:valid --test spdx:test [--unrelated pydocs:test]
        [--max-tokens 20000] [--index default] [--nprobe 8] [--seeds 3] [--json]

`nearlm reproduce` measures the same for its own settings (paper/mixture_ablation.py). Mixtures are trained on the
validation text; perplexities are means over the seeds. "Without searches": every token skips retrieval.
"""

import argparse
import json
import tempfile
from pathlib import Path

from nearlm.base import Reporter, to_json
from nearlm.mixing import trace_text
from nearlm.optimizer import Bench
from nearlm.paper.mixture_ablation import SEEDS, TEST, UNRELATED, VALID, ablate_mixture
from nearlm.search import PAPER_K, Retriever
from nearlm.store import Datastore
from nearlm.store.model_files import load_lm
from nearlm.text import TextSource


def main() -> None:
    options = parse()
    reporter = Reporter()
    store = Datastore.open(options.store)
    lm = load_lm(store)
    texts = {
        VALID: TextSource((options.valid,), max_tokens=options.valid_tokens),
        TEST: TextSource((options.test,), max_tokens=options.max_tokens),
    }
    if options.unrelated:
        texts[UNRELATED] = TextSource((options.unrelated,), max_tokens=options.max_tokens)
    benches = {name: Bench(store, trace_text(lm, store, text, reporter), reporter) for name, text in texts.items()}
    retriever = Retriever(store, options.index, nprobe=options.nprobe)
    with tempfile.TemporaryDirectory() as notes:
        found = ablate_mixture(benches, retriever, Path(notes), k=options.k, seeds=options.seeds, reporter=reporter)
    print(json.dumps(to_json(found)) if options.json else found.table())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--valid", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--unrelated")
    parser.add_argument("--max-tokens", type=int, default=20_000, help="of test and unrelated text")
    parser.add_argument("--valid-tokens", type=int)
    parser.add_argument("--index", default="default")
    parser.add_argument("--nprobe", type=int)
    parser.add_argument("--k", type=int, default=PAPER_K)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
