"""The command line: every command calls one function; torch is imported only where it is needed."""

import io
import json
import os
import shutil
import sys
import textwrap
from typing import Annotated, Any, NoReturn

import typer

from nearlm import __version__
from nearlm.errors import NearLMError

_GOES_ON = {"build", "reduce", "prune", "index", "tune", "adapt", "ablate", "sweep"}
app = typer.Typer(
    name="nearlm",
    help="Give any Hugging Face causal LM a memory of your text.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"nearlm {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (also after the command).")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass  # `main` looks for --debug itself


Store = Annotated[str, typer.Argument(metavar="STORE", help="Folder of a store, or cache:NAME.")]
Texts = Annotated[
    list[str],
    typer.Option(
        "--text",
        metavar="TEXT...",
        help="File, folder, glob, JSON(L), Parquet, hf:NAME[/CONFIG][:SPLIT], spdx:train, pydocs:train, - for stdin.",
    ),
]
MoreTexts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", hidden=True)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def build(
    text: Texts,
    out: Annotated[str, typer.Option(metavar="STORE", help="Folder of the store to make, or cache:NAME.")],
    more_text: MoreTexts = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Hub id, model folder, .gguf file, or smollm2-135m. [default for --append: the store's]",
        ),
    ] = None,
    revision: Annotated[str | None, typer.Option(metavar="REV", help="Branch, tag or commit of a hub model.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    adapter: Annotated[
        str | None, typer.Option(metavar="PATH", help="PEFT adapter to put on top of the model.")
    ] = None,
    quantization: Annotated[str | None, typer.Option(metavar="BITS", help="Load the model as 8bit or 4bit.")] = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1 …")] = "auto",
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="auto, float32, bfloat16, float16.")] = "auto",
    key_tap: Annotated[
        str | None,
        typer.Option(metavar="TAP", help="Where keys come from: ffn, last_hidden, or a module path. [default: ffn]"),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Use only the first N tokens of the text.")
    ] = None,
    window: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens the model reads at once. [default: 512]")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens from window to window. [default: the window]")
    ] = None,
    pack: Annotated[bool | None, typer.Option("--pack", help="Let windows cross documents.")] = None,
    separator: Annotated[
        str | None, typer.Option(metavar="SEP", help="After each document: eos, none, or a text. [default: eos]")
    ] = None,
    batch_tokens: Annotated[int | None, typer.Option(metavar="N", help="Tokens in a batch.")] = None,
    shard_records: Annotated[int, typer.Option(metavar="N", help="Records in a file.")] = 1 << 18,
    key_dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="float16 or float32. [default: float16]")
    ] = None,
    field: Annotated[
        str, typer.Option(metavar="NAME", help="Field of JSON, Parquet and dataset rows that holds the text.")
    ] = "text",
    glob: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Which files of a folder to read, e.g. '**/*.rst'.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse undecodable, empty or unreadable documents.")
    ] = False,
    append: Annotated[bool, typer.Option("--append", help="Add the text to a finished store.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away an unfinished build first.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Run a model over a text and keep (context vector, token) records.

    Interrupted at any moment, the same command goes on where it stopped.

    \b
    Example:
      nearlm build --model smollm2-135m --text spdx:train --max-tokens 20000 --out mystore
    """
    from nearlm.buildplan import BuildOptions
    from nearlm.extract import build as build_store
    from nearlm.pretrained import ModelSpec

    names = BuildOptions.__dataclass_fields__
    given = locals()
    loading: dict[str, Any] = {"device": device, "dtype": dtype, "trust_remote_code": trust_remote_code}
    if model is None and append:
        spec = _appending_spec(out, revision=revision, adapter=adapter, quantization=quantization, **loading)
    else:
        spec = model and ModelSpec(model, revision, adapter=adapter, quantization=quantization, **loading)
    build_store(
        spec or None,
        [*text, *(more_text or ())],
        out,
        append=append,
        restart=restart,
        field=field,
        glob=glob,
        strict=strict,
        quiet=quiet,
        **{name: given[name] for name in names},
    )


@app.command()
def info(
    store: Store,
    record: Annotated[int | None, typer.Option(help="Show where this record comes from.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a store holds, or trace one of its records to its text."""
    from nearlm.datastore import Datastore

    opened = Datastore.open(store)
    _show(opened.summary() if record is None else opened.trace(record), as_json)


@app.command()
def verify(store: Store) -> None:
    """Read every byte of a store and name the first damaged file."""
    from nearlm.datastore import Datastore
    from nearlm.ngrams import verify_ngrams
    from nearlm.progress import Reporter, size

    opened = Datastore.open(store)
    with Reporter().bar("verifying", opened.bytes, "bytes") as advance:
        opened.verify(advance)
    for name in opened.indexes:
        from nearlm.index import verify_index
        from nearlm.prune.neighbors import verify_neighbors

        verify_index(opened, name)
        verify_neighbors(opened, name)
    verify_ngrams(opened)
    for name in opened.adaptors:
        from nearlm.adaptor import verify_adaptor

        verify_adaptor(opened, name)
    print(f"{store}: {len(opened.manifest['files'])} files, {size(opened.bytes)}, all as they were written")


IndexName = Annotated[str, typer.Option("--index", metavar="NAME", help="Which index of the store.")]
Nprobe = Annotated[int | None, typer.Option(metavar="N", help="Lists a search looks at. [default: the index's]")]
K = Annotated[int | None, typer.Option("--k", metavar="N", help="Neighbours of a token. [default: tuned, or 1024]")]
Lam = Annotated[float | None, typer.Option("--lam", metavar="L", help="Weight of the memory, 0 to 1. [default: tuned]")]
Temperature = Annotated[float | None, typer.Option(metavar="T", help="Divides distances. [default: tuned, or 1]")]
Distances = Annotated[
    str | None,
    typer.Option(
        metavar="WHICH",
        help="index: as the index gives them; store: exact; parent: exact, by the keys of the store that this one was "
        "made from. [default: index]",
    ),
]
AdaptorName = Annotated[str | None, typer.Option("--adaptor", metavar="NAME", help="Let this adaptor choose λ.")]
Skip = Annotated[str | None, typer.Option(metavar="SHARE", help="Tokens that do not ask the memory: 0 to 1, or auto.")]
Budget = Annotated[
    float | None, typer.Option(metavar="PPL", help="With --skip auto: perplexity it may cost. [default: 0.1]")
]
Model = Annotated[str | None, typer.Option(metavar="MODEL", help="The store's model, if it has moved.")]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1 …")]
Dtype = Annotated[str, typer.Option(metavar="DTYPE", help="auto, float32, bfloat16, float16.")]
MaxTokens = Annotated[int | None, typer.Option(metavar="N", help="Use only the first N tokens of the text.")]
Stride = Annotated[int | None, typer.Option(metavar="N", help="Tokens from window to window. [default: the window]")]
Field = Annotated[str, typer.Option(metavar="NAME", help="Field of rows that holds the text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]


Out = Annotated[str, typer.Option(metavar="STORE", help="Folder of the store to make, or cache:NAME.")]
Restart = Annotated[bool, typer.Option("--restart", help="Throw away an unfinished run first.")]


@app.command("reduce")
def reduce_keys(
    store: Store,
    dim: Annotated[int, typer.Option(metavar="D", help="How many dimensions a key keeps.")],
    out: Out,
    sample: Annotated[int, typer.Option(metavar="N", help="Records to train the PCA on.")] = 1 << 20,
    restart: Restart = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Make a store with narrower keys, by PCA and a random rotation.

    Interrupted at any moment, the same command goes on where it stopped.
    """
    from nearlm.derive import result_of
    from nearlm.reduce import reduce_store

    _show(result_of(reduce_store(store, dim, out, sample=sample, restart=restart, quiet=quiet)), as_json)


@app.command()
def prune(
    store: Store,
    method: Annotated[str, typer.Option(metavar="METHOD", help="random, kmeans, merge or rank.")],
    out: Out,
    keep: Annotated[float | None, typer.Option(metavar="SHARE", help="Share of the records that stay.")] = None,
    neighbors: Annotated[
        int | None, typer.Option(metavar="K", help="merge: neighbours to look at, the record itself included.")
    ] = None,
    ratio: Annotated[float | None, typer.Option(metavar="R", help="kmeans: records a cluster. [default: 20]")] = None,
    top_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="kmeans: cluster the N most frequent targets. [default: 5000]")
    ] = None,
    k: Annotated[int | None, typer.Option("--k", metavar="N", help="rank: neighbours. [default: 1024]")] = None,
    count_self: Annotated[
        bool, typer.Option("--count-self", help="rank: count a record as its own neighbour.")
    ] = False,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of random choices. [default: 0]")] = None,
    name: Annotated[
        str | None, typer.Option("--index", metavar="NAME", help="merge, rank: which index. [default: default]")
    ] = None,
    restart: Restart = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Make a store with fewer records, weighted by what they stand for.

    Interrupted at any moment, the same command goes on where it stopped.

    \b
    Example:
      nearlm prune mystore --method merge --keep 0.6 --out smaller
    """
    from nearlm.derive import result_of
    from nearlm.prune.pruning import prune_store

    options: dict[str, Any] = {"keep": keep, "neighbors": neighbors, "ratio": ratio, "top_tokens": top_tokens}
    options |= {"k": k, "count_self": count_self or None, "seed": seed, "index": name}
    _show(result_of(prune_store(store, method, out, restart=restart, quiet=quiet, **options)), as_json)


@app.command()
def index(
    store: Store,
    factory: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="auto, paper, flat, or a FAISS factory string. [default: auto, or as it is]"),
    ] = None,
    nprobe: Nprobe = None,
    name: IndexName = "default",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Make a search index over a store's keys, or bring it up to date."""
    from nearlm.datastore import Datastore
    from nearlm.indexing import build_index

    made = build_index(Datastore.open(store), factory, name=name, nprobe=nprobe, quiet=quiet)
    _show({name: value for name, value in made.items() if name not in ("files", "shards", "manifest")}, as_json)


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
    from nearlm.datastore import Datastore
    from nearlm.knnlm import load_lm
    from nearlm.progress import Reporter
    from nearlm.retrieve import Retriever
    from nearlm.tune import tune as tune_index

    opened = Datastore.open(store)
    retriever = Retriever(opened, name, nprobe=nprobe, distances=distances or "index")
    lm = load_lm(opened, _spec(opened, model, device=device, dtype=dtype, trust_remote_code=trust_remote_code))
    options: dict[str, Any] = {"k": k, "stride": stride, "max_tokens": max_tokens, "field": field}
    found = tune_index(lm, retriever, [*text, *(more_text or ())], reporter=Reporter(quiet), **options)
    if as_json:
        _show(found.to_json(), True)
    else:
        print(found.table())


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
    from nearlm.adaptor import Adaptor
    from nearlm.adaptor_training import Training
    from nearlm.datastore import Datastore
    from nearlm.knnlm import load_lm
    from nearlm.progress import Reporter

    opened, training = Datastore.open(store), Training(objective, seed)
    lm = load_lm(opened, _spec(opened, model, device=device, dtype=dtype, trust_remote_code=trust_remote_code))
    learning: dict[str, Any] = {"features": features, "standardise": standardise, "a": a, "training": training}
    options: dict[str, Any] = {"stride": stride, "max_tokens": max_tokens, "field": field}
    texts = [*text, *(more_text or ())]
    made = Adaptor.train(lm, opened, texts, name=adaptor, index=name, reporter=Reporter(quiet), **learning, **options)
    if as_json:
        _show(made.described, True)
    else:
        print(made.table())


@app.command("eval")
def evaluate_text(
    store: Store,
    text: Texts,
    more_text: MoreTexts = None,
    name: IndexName = "default",
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
    from nearlm.evaluate import evaluate
    from nearlm.progress import Reporter

    mixing: dict[str, Any] = {"lam": lam, "temperature": temperature, "k": k, "nprobe": nprobe, "distances": distances}
    mixing |= {"adaptor": adaptor, "skip": skip, "budget": budget}
    loading: dict[str, Any] = {"device": device, "dtype": dtype, "trust_remote_code": trust_remote_code}
    knnlm = _knnlm(store, model, loading, quiet, index=name, knn=not no_knn, **mixing)
    options: dict[str, Any] = {"stride": stride, "max_tokens": max_tokens, "field": field}
    found = evaluate(knnlm, [*text, *(more_text or ())], reporter=Reporter(quiet), **options)
    _show(found.to_json(), as_json)


@app.command()
def ablate(
    store: Store,
    text: Texts,
    more_text: MoreTexts = None,
    valid: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="The adaptor's validation text, to train the variants of the paper too."),
    ] = None,
    valid_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Use only the first N tokens of the validation text.")
    ] = None,
    adaptor: Annotated[str, typer.Option(metavar="NAME", help="The adaptor to take apart.")] = "default",
    figure: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw the curves into a .png, .svg or .pdf.")
    ] = None,
    max_tokens: MaxTokens = None,
    model: Model = None,
    trust_remote_code: Trust = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    field: Field = "text",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Take an adaptor apart on a test text: masks, weights, features, objectives."""
    from pathlib import Path

    from nearlm import report
    from nearlm.datastore import Datastore
    from nearlm.experiments.ablate import ablate as take_apart
    from nearlm.knnlm import load_lm
    from nearlm.progress import Reporter

    if figure:
        report.check_figure(Path(figure))
    opened = Datastore.open(store)
    lm = load_lm(opened, _spec(opened, model, device=device, dtype=dtype, trust_remote_code=trust_remote_code))
    options: dict[str, Any] = {"valid": valid or (), "valid_tokens": valid_tokens, "max_tokens": max_tokens}
    texts = [*text, *(more_text or ())]
    found = take_apart(lm, opened, texts, adaptor=adaptor, reporter=Reporter(quiet), field=field, **options)
    if as_json:
        _show(found.to_json(), True)
    else:
        print(found.table())
    if figure:
        report.ablation_figure(found.to_json(), Path(figure))


@app.command("sweep")
def sweep_store(
    store: Store,
    values: Annotated[list[float], typer.Argument(metavar="VALUE", help="The values to try.")],
    over: Annotated[str, typer.Option(metavar="WHAT", help="dim, keep, neighbors, k or nprobe.")],
    text: Texts,
    method: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="With --over keep: random, kmeans, merge or rank. [default: merge]"),
    ] = None,
    factory: Annotated[str, typer.Option(metavar="KIND", help="The index of every point, as for `index`.")] = "auto",
    nprobe: Nprobe = None,
    k: Annotated[int, typer.Option("--k", metavar="N", help="Neighbours of a token.")] = 1024,
    out: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where it works. [default: the store's name with -sweep]")
    ] = None,
    save_stores: Annotated[bool, typer.Option("--save-stores", help="Keep the stores that were made.")] = False,
    figure: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw the points into a .png, .svg or .pdf.")
    ] = None,
    max_tokens: MaxTokens = None,
    model: Model = None,
    trust_remote_code: Trust = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    field: Field = "text",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Vary one thing of a store and measure what it costs."""
    from pathlib import Path

    from nearlm import report
    from nearlm.datastore import Datastore
    from nearlm.experiments.sweep import sweep
    from nearlm.knnlm import load_lm
    from nearlm.progress import Reporter

    if figure:
        report.check_figure(Path(figure))
    opened = Datastore.open(store)
    lm = load_lm(opened, _spec(opened, model, device=device, dtype=dtype, trust_remote_code=trust_remote_code))
    folder = Path(out) if out else opened.path.with_name(f"{opened.path.name}-sweep")
    options: dict[str, Any] = {"method": method, "factory": factory, "k": k, "nprobe": nprobe, "field": field}
    options |= {"save_stores": save_stores, "max_tokens": max_tokens, "reporter": Reporter(quiet), "out": folder}
    found = sweep(lm, opened, over, values, text, **options)
    if as_json:
        _show(found.to_json(), True)
    else:
        print(found.table())
    if figure:
        report.sweep_figure(found.to_json(), Path(figure))


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
    name: IndexName = "default",
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
    from nearlm.console import write_continuation

    mixing: dict[str, Any] = {"lam": lam, "temperature": temperature, "k": k, "nprobe": nprobe, "distances": distances}
    mixing |= {"adaptor": adaptor, "skip": skip, "budget": budget}
    loading: dict[str, Any] = {"device": device, "dtype": dtype, "trust_remote_code": trust_remote_code}
    knnlm = _knnlm(store, model, loading, index=name, knn=not no_knn, **mixing)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": sample, "num_beams": beams}
    if top_p is not None:
        options["top_p"] = top_p
    read = sys.stdin.read() if prompt == "-" else prompt
    write_continuation(knnlm, read, chat=chat, seed=seed, explain=explain, **options)


def _spec(store: Any, model: str | None, **loading: Any) -> Any:
    """Say how to load a store's model: from where it was, or from where it is now."""
    import dataclasses

    from nearlm.pretrained import ModelSpec

    spec = ModelSpec(**store.model_options())
    moved: dict[str, Any] = {"name": model, "revision": None} if model else {}
    return dataclasses.replace(spec, **moved, **loading)


def _appending_spec(store: str, **given: Any) -> Any:
    """Say how to load the model of a store that is appended to: as it was, but for what is given."""
    from nearlm.datastore import Datastore

    opened = Datastore.open(store)
    if given["dtype"] == "auto":
        given["dtype"] = opened.manifest["model"]["dtype"]
    return _spec(opened, None, **{name: value for name, value in given.items() if value is not None})


def _knnlm(store: str, model: str | None, loading: dict[str, Any], quiet: bool = True, **options: Any) -> Any:
    """Load a store with its model and index, and say what the index needs."""
    from nearlm.datastore import Datastore
    from nearlm.knnlm import KNNLM
    from nearlm.progress import Reporter

    opened = Datastore.open(store)
    knnlm = KNNLM.load(opened, _spec(opened, model, **loading), **options)
    if knnlm.retriever is not None:
        knnlm.retriever.announce(Reporter(quiet))
    return knnlm


def _show(values: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(values, ensure_ascii=False, indent=1))
        return
    width = max(map(len, values)) + 2
    columns = shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None
    for name, value in values.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {_worded(item)}" for key, item in value.items() if item is not None)
        lines = _wrapped(_worded(value), columns and max(20, columns - width))
        print(f"{name.replace('_', ' '):{width}}{lines[0]}".rstrip())
        for line in lines[1:]:
            print(f"{'':{width}}{line}".rstrip())


def _worded(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(_worded, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _wrapped(text: str, width: int | None) -> list[str]:
    """Break a value into lines that fit a terminal; what goes elsewhere keeps its own lines only."""
    lines = text.split("\n")
    if width:
        lines = [part for line in lines for part in textwrap.wrap(line, width, replace_whitespace=False) or [""]]
    return lines


def main() -> NoReturn:
    """Run the command line; an error of the user's is one line and exit code 2."""
    arguments = sys.argv[1:] or ["--help"]
    debug = "--debug" in arguments or bool(os.environ.get("NEARLM_DEBUG"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code, message = 0, ""
    try:
        code = app([each for each in arguments if each != "--debug"], prog_name="nearlm", standalone_mode=False) or 0
        _flush()
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exc()
        code, message = _verdict(error)
    if code == 130:
        message = f"interrupted{'; the same command goes on where it stopped' if _GOES_ON & set(arguments) else ''}"
    if message:
        print(f"nearlm: {' '.join(message.split())}", file=sys.stderr)
    _leave(code)


def _verdict(error: Exception) -> tuple[int, str]:
    """Return the exit code that an error deserves, and what to say about it."""
    if isinstance(error, NearLMError):
        return 2, str(error)
    if hasattr(error, "format_message"):  # a mistake in the command itself
        context = getattr(error, "ctx", None)
        return 2, f"{error.format_message()} (see `{context.command_path if context else 'nearlm'} --help`)"
    if isinstance(error, BrokenPipeError):
        return 141, ""
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return 2, f"{place}{error.strerror or error} (--debug shows where)"
    return 1, f"unexpected {type(error).__name__}: {error} (--debug shows where; please report it)"


def _flush() -> None:
    if sys.stdout is not None:  # None: it was closed
        sys.stdout.flush()


def _leave(code: int) -> NoReturn:
    """Exit, without a word about output that nobody reads any more."""
    try:
        _flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
