"""Commands that make stores and indexes, and look into them."""

from typing import Annotated, Any

import typer

from nearlm.cli.app import app
from nearlm.cli.options import (
    AsJson,
    IndexName,
    MoreTexts,
    Nprobe,
    Out,
    Quiet,
    Restart,
    Store,
    Texts,
    appending_spec,
    show,
)


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
    from nearlm.model import ModelSpec
    from nearlm.store import BuildOptions
    from nearlm.store.build import build as build_store

    names = BuildOptions.__dataclass_fields__
    given = locals()
    loading: dict[str, Any] = {"device": device, "dtype": dtype, "trust_remote_code": trust_remote_code}
    if model is None and append:
        spec = appending_spec(out, revision=revision, adapter=adapter, quantization=quantization, **loading)
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
    from nearlm.store import Datastore

    opened = Datastore.open(store)
    show(opened.summary() if record is None else opened.trace(record), as_json)


@app.command()
def verify(store: Store) -> None:
    """Read every byte of a store and name the first damaged file."""
    from nearlm.base import Reporter, size
    from nearlm.mixing import verify_ngrams
    from nearlm.store import Datastore

    opened = Datastore.open(store)
    with Reporter().bar("verifying", opened.bytes, "bytes") as advance:
        opened.verify(advance)
    for name in opened.indexes:
        from nearlm.search import verify_index
        from nearlm.shrink import verify_neighbors

        verify_index(opened, name)
        verify_neighbors(opened, name)
    verify_ngrams(opened)
    for name in opened.adaptors:
        from nearlm.mixing import verify_adaptor

        verify_adaptor(opened, name)
    print(f"{store}: {len(opened.manifest['files'])} files, {size(opened.bytes)}, all as they were written")


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
    from nearlm.shrink import reduce_store
    from nearlm.store import result_of

    show(result_of(reduce_store(store, dim, out, sample=sample, restart=restart, quiet=quiet)), as_json)


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
    from nearlm.shrink import prune_store
    from nearlm.store import result_of

    options: dict[str, Any] = {"keep": keep, "neighbors": neighbors, "ratio": ratio, "top_tokens": top_tokens}
    options |= {"k": k, "count_self": count_self or None, "seed": seed, "index": name}
    show(result_of(prune_store(store, method, out, restart=restart, quiet=quiet, **options)), as_json)


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
    from nearlm.search import build_index
    from nearlm.store import Datastore

    made = build_index(Datastore.open(store), factory, name=name, nprobe=nprobe, quiet=quiet)
    show({name: value for name, value in made.items() if name not in ("files", "shards", "manifest")}, as_json)
