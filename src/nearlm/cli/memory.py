"""Commands that put a store to use: tune, evaluate, generate, optimize."""

import sys
from typing import Annotated

from cyclopts import Parameter

from nearlm.base import Json, to_json
from nearlm.cli.options import FLAT, OUTPUT, OWN_MODEL, Model, Out, Shown, Source, Store, Stride, load_model, model_spec
from nearlm.store import DEFAULT, Datastore, SearchSettings

NoKnn = Annotated[bool, Parameter(help="The model alone, without its memory.", show_default=False)]
Search = Annotated[SearchSettings, FLAT]


def tune_command(
    store: Store,
    /,
    *,
    source: Source,
    index: Annotated[str, Parameter(help="Which index of the store.")] = DEFAULT,
    nprobe: Annotated[int | None, Parameter(help="Lists a search looks at. [default: the index's]")] = None,
    k: Annotated[int | None, Parameter(help="Most neighbours per token to try. [default: 1024]")] = None,
    distances: Annotated[str, Parameter(help="index, store or parent, as for `eval`.")] = "index",
    stride: Stride = None,
    spec: Model = OWN_MODEL,
    output: Shown = OUTPUT,
) -> None:
    """Choose λ, T and k on a validation text, and keep them with the index."""
    from nearlm.mixing import tune

    opened = Datastore.open(store)
    model = model_spec(opened, spec)
    search: Json = {"index": index, "nprobe": nprobe, "k": k, "distances": distances}
    output.tell(tune(opened, source, model, **search, stride=stride, reporter=output.reporter))


def eval_command(
    store: Store,
    /,
    *,
    source: Source,
    settings: Search = SearchSettings(),
    no_knn: NoKnn = False,
    stride: Stride = None,
    spec: Model = OWN_MODEL,
    output: Shown = OUTPUT,
) -> None:
    """Perplexity and speed over a text, and where the time went."""
    from nearlm.knnlm import KNNLM, evaluate

    opened = Datastore.open(store)
    knnlm = KNNLM.load(opened, model_spec(opened, spec), settings, knn=not no_knn)
    if knnlm.retriever is not None:
        knnlm.retriever.announce(output.reporter)
    found = to_json(evaluate(knnlm, source, stride=stride, reporter=output.reporter))
    search = found.pop("search")
    output.show({**found, **{name: value for name, value in search.items() if name != "budget"}})


def generate_command(
    store: Store,
    /,
    *,
    prompt: Annotated[str, Parameter(allow_leading_hyphen=True, help="What to continue; - reads it from stdin.")],
    max_new_tokens: Annotated[int, Parameter(help="How many tokens to add at most.")] = 60,
    chat: Annotated[bool, Parameter(help="Put the prompt into the tokenizer's chat template.")] = False,
    sample: Annotated[bool, Parameter(help="Sample instead of taking the likeliest token.")] = False,
    top_p: Annotated[float | None, Parameter(help="Sample from the likeliest tokens up to P.")] = None,
    beams: Annotated[int, Parameter(help="Beams of a beam search.")] = 1,
    seed: Annotated[int, Parameter(help="Seed of the sampling.")] = 0,
    explain: Annotated[bool, Parameter(help="Show what the memory contributed to each token.")] = False,
    settings: Search = SearchSettings(),
    no_knn: NoKnn = False,
    spec: Model = OWN_MODEL,
) -> None:
    """Continue a prompt with the model and its memory."""
    from nearlm.cli.console import write_continuation
    from nearlm.knnlm import KNNLM

    opened = Datastore.open(store)
    knnlm = KNNLM.load(opened, model_spec(opened, spec), settings, knn=not no_knn)
    options: Json = {"max_new_tokens": max_new_tokens, "do_sample": sample, "num_beams": beams}
    if top_p is not None:
        options["top_p"] = top_p
    read = sys.stdin.read() if prompt == "-" else prompt
    write_continuation(knnlm, read, chat=chat, seed=seed, explain=explain, **options)


def optimize_command(
    store: Store,
    /,
    *,
    source: Source,
    out: Out,
    budget: Annotated[float, Parameter(help="Perplexity that it may cost, compared with the vanilla kNN-LM.")] = 0.1,
    spec: Model = OWN_MODEL,
    output: Shown = OUTPUT,
) -> None:
    """Make the fastest store within a perplexity budget, ready to use."""
    from nearlm.optimizer import optimize

    opened = Datastore.open(store)
    lm = load_model(opened, spec)
    output.tell(optimize(opened, source, out, lm, budget=budget, reporter=output.reporter))
