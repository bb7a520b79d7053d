"""Commands that put a store to use: tune, adapt, evaluate, generate."""

import sys
from typing import Annotated, Any

import typer

from nearlm.cli.app import app
from nearlm.cli.options import (
    AdaptorName,
    AsJson,
    Budget,
    Device,
    Distances,
    Dtype,
    Field,
    IndexName,
    K,
    Lam,
    MaxTokens,
    Model,
    MoreTexts,
    Nprobe,
    Quiet,
    Skip,
    Store,
    Stride,
    Temperature,
    Texts,
    Trust,
    UsedIndex,
    load_knnlm,
    load_model,
    show,
    tell,
)


@app.command()
def tune(
    store: Store,
    text: Texts,
    more_text: MoreTexts = None,
    name: IndexName = "default",
    nprobe: Nprobe = None,
    k: K = None,
    distances: Distances = None,
    stride: Stride = None,
    max_tokens: MaxTokens = None,
    model: Model = None,
    trust_remote_code: Trust = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    field: Field = "text",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Choose λ, T and k on a validation text, and keep them with the index."""
    from nearlm.base import Reporter
    from nearlm.mixing import tune as tune_index
    from nearlm.search import Retriever
    from nearlm.store import Datastore

    opened = Datastore.open(store)
    retriever = Retriever(opened, name, nprobe=nprobe, distances=distances or "index")
    lm = load_model(opened, model, device, dtype, trust_remote_code)
    options: dict[str, Any] = {"k": k, "stride": stride, "max_tokens": max_tokens, "field": field}
    found = tune_index(lm, retriever, [*text, *(more_text or ())], reporter=Reporter(quiet), **options)
    tell(found, as_json)


@app.command()
def adapt(
    store: Store,
    text: Texts,
    more_text: MoreTexts = None,
    adaptor: Annotated[str, typer.Option(metavar="NAME", help="Name of the adaptor to make.")] = "default",
    name: IndexName = "default",
    objective: Annotated[str, typer.Option(metavar="WHICH", help="likelihood or classify.")] = "likelihood",
    features: Annotated[
        str, typer.Option(metavar="NAMES", help="Some of keys,conf,ent,freq,fert, or all.")
    ] = "conf,ent,freq,fert",
    a: Annotated[str, typer.Option("--a", metavar="A", help="Weight of the L1 term that makes λ small, or auto.")] = (
        "0.05"
    ),
    standardise: Annotated[str, typer.Option(metavar="WHICH", help="Scale features: all, scalars or none.")] = "all",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the training.")] = 0,
    stride: Stride = None,
    max_tokens: MaxTokens = None,
    model: Model = None,
    trust_remote_code: Trust = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    field: Field = "text",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Learn on a validation text when to ask the memory, and how much to trust it."""
    from nearlm.base import Reporter
    from nearlm.mixing import Adaptor, Training
    from nearlm.store import Datastore

    opened, training = Datastore.open(store), Training(objective, seed)
    lm = load_model(opened, model, device, dtype, trust_remote_code)
    learning: dict[str, Any] = {"features": features, "standardise": standardise, "a": a, "training": training}
    options: dict[str, Any] = {"stride": stride, "max_tokens": max_tokens, "field": field}
    texts = [*text, *(more_text or ())]
    made = Adaptor.train(lm, opened, texts, name=adaptor, index=name, reporter=Reporter(quiet), **learning, **options)
    if as_json:
        show(made.described, True)
    else:
        print(made.table())


@app.command("eval")
def evaluate_text(
    store: Store,
    text: Texts,
    more_text: MoreTexts = None,
    name: UsedIndex = None,
    lam: Lam = None,
    temperature: Temperature = None,
    k: K = None,
    nprobe: Nprobe = None,
    distances: Distances = None,
    adaptor: AdaptorName = None,
    skip: Skip = None,
    budget: Budget = None,
    no_knn: Annotated[bool, typer.Option("--no-knn", help="The model alone, on the same path.")] = False,
    stride: Stride = None,
    max_tokens: MaxTokens = None,
    model: Model = None,
    trust_remote_code: Trust = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    field: Field = "text",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Perplexity and speed over a text, and where the time went."""
    from nearlm.base import Reporter
    from nearlm.knnlm import evaluate

    mixing: dict[str, Any] = {"lam": lam, "temperature": temperature, "k": k, "nprobe": nprobe, "distances": distances}
    mixing |= {"adaptor": adaptor, "skip": skip, "budget": budget}
    loading: dict[str, Any] = {"device": device, "dtype": dtype, "trust_remote_code": trust_remote_code}
    knnlm = load_knnlm(store, model, loading, quiet, index=name, knn=not no_knn, **mixing)
    options: dict[str, Any] = {"stride": stride, "max_tokens": max_tokens, "field": field}
    found = evaluate(knnlm, [*text, *(more_text or ())], reporter=Reporter(quiet), **options)
    show(found.to_json(), as_json)


@app.command()
def generate(
    store: Store,
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="What to continue; - reads it from stdin.")],
    max_new_tokens: Annotated[int, typer.Option(metavar="N", help="How many tokens to add at most.")] = 60,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt into the tokenizer's chat template.")] = False,
    sample: Annotated[bool, typer.Option("--sample", help="Sample instead of taking the likeliest token.")] = False,
    top_p: Annotated[float | None, typer.Option(metavar="P", help="Sample from the likeliest tokens up to P.")] = None,
    beams: Annotated[int, typer.Option(metavar="N", help="Beams of a beam search.")] = 1,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the sampling.")] = 0,
    explain: Annotated[bool, typer.Option("--explain", help="Show what the memory contributed to each token.")] = False,
    name: UsedIndex = None,
    lam: Lam = None,
    temperature: Temperature = None,
    k: K = None,
    nprobe: Nprobe = None,
    distances: Distances = None,
    adaptor: AdaptorName = None,
    skip: Skip = None,
    budget: Budget = None,
    no_knn: Annotated[bool, typer.Option("--no-knn", help="The model alone, without its memory.")] = False,
    model: Model = None,
    trust_remote_code: Trust = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Continue a prompt with the model and its memory."""
    from nearlm.cli.console import write_continuation

    mixing: dict[str, Any] = {"lam": lam, "temperature": temperature, "k": k, "nprobe": nprobe, "distances": distances}
    mixing |= {"adaptor": adaptor, "skip": skip, "budget": budget}
    loading: dict[str, Any] = {"device": device, "dtype": dtype, "trust_remote_code": trust_remote_code}
    knnlm = load_knnlm(store, model, loading, index=name, knn=not no_knn, **mixing)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": sample, "num_beams": beams}
    if top_p is not None:
        options["top_p"] = top_p
    read = sys.stdin.read() if prompt == "-" else prompt
    write_continuation(knnlm, read, chat=chat, seed=seed, explain=explain, **options)
