"""Commands that put a store to use: tune, evaluate, generate, optimize."""

import sys
from typing import Annotated, Any

from nearlm.base import OptionError, to_json
from nearlm.cli.console import GREEDY, Generation
from nearlm.cli.help import GENERATION, SEARCH
from nearlm.cli.options import (
    HERE,
    OWN_MODEL,
    PLAIN,
    IndexName,
    Model,
    More,
    Nprobe,
    Out,
    Search,
    Shown,
    Source,
    Store,
    Stride,
    Where,
    flat,
    load_model,
    model_spec,
    option,
)
from nearlm.store import DEFAULT, Datastore, SearchSettings, open_stores, store_names

_OF_SEARCHES = ("retrievals", "retrievals_per_second", "skipped", "gate_share", "search_share", "gate_microseconds")
NoKnn = Annotated[bool, option(SEARCH, "The model alone, without its memory.")]


def tune_command(
    store: Store,
    /,
    source: Source,
    *,
    index: IndexName = DEFAULT,
    nprobe: Nprobe = None,
    k: Annotated[int | None, option(SEARCH, "Most neighbours per token to try. [default: 1024]")] = None,
    distances: Annotated[str, option(SEARCH, "index, store or parent, as for `eval`.")] = "index",
    stride: Stride = None,
    spec: Model = OWN_MODEL,
    where: Where = HERE,
    output: Shown = PLAIN,
) -> None:
    """Choose λ, T and k on a validation text, and keep them with the index."""
    from nearlm.cluster.served import searching_on
    from nearlm.mixing import tune

    opened = Datastore.open(store)
    model = model_spec(opened, spec)
    how: dict[str, Any] = {"index": index, "nprobe": nprobe, "k": k, "distances": distances, "stride": stride}
    with searching_on(where, output.reporter, opened):
        output.tell(tune(opened, source, model, reporter=output.reporter, **how))


def eval_command(
    store: Store,
    /,
    source: Source,
    *,
    more: More = (),
    settings: Search = SearchSettings(),
    no_knn: NoKnn = False,
    stride: Stride = None,
    spec: Model = OWN_MODEL,
    where: Where = HERE,
    output: Shown = PLAIN,
) -> None:
    """Perplexity and speed over a text, and where the time went."""
    from nearlm.cluster.served import searching_on
    from nearlm.knnlm import KNNLM, evaluate

    stores = open_stores([store, *more])
    with searching_on(where, output.reporter, *stores):
        knnlm = KNNLM.load(stores, model_spec(stores[0], spec), settings, knn=not no_knn)
        memory = knnlm.memory
        retrievers = [one.retriever for one in memory.each if one.retriever] if memory is not None else []
        for retriever in retrievers:
            retriever.announce(output.reporter)
        found = to_json(evaluate(knnlm, source, stride=stride, reporter=output.reporter))
    if where.allow_partial and retrievers:
        found["searched_share"] = min(retriever.searched for retriever in retrievers)
    search = {name: value for name, value in found.pop("search").items() if name != "budget"}
    if memory is not None and not memory.searches:
        found = {name: value for name, value in found.items() if name not in _OF_SEARCHES}
    if memory is not None and knnlm.retriever is None:
        search = {"mixture": search["mixture"]}
    if len(stores) > 1:
        search["stores"] = list(store_names(stores))
    output.show({**found, **search})


def generate_command(
    store: Store,
    /,
    prompt: Annotated[str, option(GENERATION, "What to continue; - reads it from stdin.")],
    *,
    more: More = (),
    generation: Annotated[Generation, flat(GENERATION)] = GREEDY,
    settings: Search = SearchSettings(),
    no_knn: NoKnn = False,
    spec: Model = OWN_MODEL,
    where: Where = HERE,
    output: Shown = PLAIN,
) -> None:
    """Continue a prompt with the model and its memory."""
    from nearlm.cli.console import write_continuation
    from nearlm.cluster.served import searching_on
    from nearlm.knnlm import KNNLM

    typed = _read_prompt(prompt)
    stores = open_stores([store, *more])
    with searching_on(where, output.reporter, *stores):
        knnlm = KNNLM.load(stores, model_spec(stores[0], spec), settings, knn=not no_knn)
        write_continuation(knnlm, typed, generation, output)


def _read_prompt(prompt: str) -> str:
    """Return what was typed, or what stdin holds."""
    if prompt == "-" and sys.stdin is None:
        raise OptionError("the prompt is -, but stdin is closed; give the prompt itself, or a pipe")
    try:
        read = sys.stdin.read() if prompt == "-" else prompt
        read.encode()
    except UnicodeError:
        raise OptionError("the prompt is not valid UTF-8; expected text, convert it first") from None
    return read


def optimize_command(
    store: Store,
    /,
    source: Source,
    *,
    out: Out,
    overhead: Annotated[
        float | None, option(SEARCH, "What it may take of a token's time, as a share of the LM's. [default: 0.02]")
    ] = None,
    budget: Annotated[
        float | None, option(SEARCH, "Instead: the fastest within so much perplexity of the vanilla kNN-LM.")
    ] = None,
    spec: Model = OWN_MODEL,
    where: Where = HERE,
    output: Shown = PLAIN,
) -> None:
    """Make the best memory that is fast enough, ready to use."""
    from nearlm.cluster.served import searching_on
    from nearlm.optimizer import optimize

    opened = Datastore.open(store)
    lm = load_model(opened, spec)
    with searching_on(where, output.reporter, opened):
        output.tell(optimize(opened, source, out, lm, overhead=overhead, budget=budget, reporter=output.reporter))
