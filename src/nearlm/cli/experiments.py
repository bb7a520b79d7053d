"""Commands that measure and choose."""

import sys
from typing import Annotated, Any

import typer

from nearlm.cli.app import app
from nearlm.cli.options import (
    AsJson,
    Device,
    Dtype,
    Field,
    MaxTokens,
    Model,
    MoreTexts,
    Nprobe,
    Out,
    Quiet,
    Store,
    Texts,
    Trust,
    load_model,
    tell,
)


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

    from nearlm.base import Reporter
    from nearlm.paper import report
    from nearlm.paper.ablation import ablate as take_apart
    from nearlm.store import Datastore

    if figure:
        report.check_figure(Path(figure))
    opened = Datastore.open(store)
    lm = load_model(opened, model, device, dtype, trust_remote_code)
    options: dict[str, Any] = {"valid": valid or (), "valid_tokens": valid_tokens, "max_tokens": max_tokens}
    texts = [*text, *(more_text or ())]
    found = take_apart(lm, opened, texts, adaptor=adaptor, reporter=Reporter(quiet), field=field, **options)
    tell(found, as_json)
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

    from nearlm.base import Reporter
    from nearlm.paper import report
    from nearlm.paper.sweep import sweep
    from nearlm.store import Datastore

    if figure:
        report.check_figure(Path(figure))
    opened = Datastore.open(store)
    lm = load_model(opened, model, device, dtype, trust_remote_code)
    folder = Path(out) if out else opened.path.with_name(f"{opened.path.name}-sweep")
    options: dict[str, Any] = {"method": method, "factory": factory, "k": k, "nprobe": nprobe, "field": field}
    options |= {"save_stores": save_stores, "max_tokens": max_tokens, "reporter": Reporter(quiet), "out": folder}
    found = sweep(lm, opened, over, values, text, **options)
    tell(found, as_json)
    if figure:
        report.sweep_figure(found.to_json(), Path(figure))


@app.command("optimize")
def optimize_store(
    store: Store,
    text: Texts,
    out: Out,
    more_text: MoreTexts = None,
    budget: Annotated[
        float, typer.Option(metavar="PPL", help="Perplexity that it may cost, compared with the vanilla kNN-LM.")
    ] = 0.1,
    max_tokens: MaxTokens = None,
    model: Model = None,
    trust_remote_code: Trust = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    field: Field = "text",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Make the fastest store within a perplexity budget, ready to use.

    Chooses dimensions, records, lists, neighbours, λ, T and the share of searches to skip on a validation text.
    Interrupted at any moment, the same command goes on where it stopped.

    \b
    Example:
      nearlm optimize mystore --text valid/ --out fast
      nearlm eval fast --text test/
    """
    from nearlm.base import Reporter
    from nearlm.optimizer import optimize
    from nearlm.store import Datastore

    opened = Datastore.open(store)
    lm = load_model(opened, model, device, dtype, trust_remote_code)
    options: dict[str, Any] = {"budget": budget, "max_tokens": max_tokens, "field": field}
    found = optimize(lm, opened, [*text, *(more_text or ())], out, reporter=Reporter(quiet), **options)
    tell(found, as_json)


@app.command()
def demo(
    out: Annotated[str, typer.Option(metavar="FOLDER", help="Where everything goes.")] = "demo",
    max_tokens: Annotated[int, typer.Option(metavar="N", help="How many tokens the memory holds.")] = 100_000,
    quiet: Quiet = False,
) -> None:
    """From nothing to a fast memory: SmolLM2 and licence texts.

    Builds a store, tunes, merges, reduces, trains the adaptor, and shows the paper's main table and a continuation with
    and without the memory. Interrupted at any moment, the same command goes on where it stopped.
    """
    from nearlm.paper.reproduction import DEMO_PARTS
    from nearlm.paper.settings import DEMO, sized

    _reproduce(sized(DEMO, max_tokens), out, DEMO_PARTS, quiet)


@app.command()
def reproduce(
    setting: Annotated[str, typer.Option(metavar="NAME", help="domain, standard, wikitext103 or law-mt.")],
    out: Annotated[str, typer.Option(metavar="FOLDER", help="Where tables, figures and the page go.")],
    max_tokens: Annotated[int | None, typer.Option(metavar="N", help="Put only N tokens into the store.")] = None,
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="Another model than the setting's.")] = None,
    train: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Another text for the store.")] = None,
    valid: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Another text to tune on.")] = None,
    test: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Another text to test on.")] = None,
    finetune_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Also train the model itself on N tokens of the store's text.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Measure every table and figure of the paper, and make a page of them.

    Interrupted at any moment, the same command goes on where it stopped.
    """
    from nearlm.paper.reproduction import ALL_PARTS
    from nearlm.paper.settings import changed, find_setting, sized

    chosen = changed(find_setting(setting), model=model, train=train, valid=valid, test=test)
    _reproduce(sized(chosen, max_tokens), out, ALL_PARTS, quiet, finetune_tokens)


def _reproduce(setting: Any, out: str, parts: Any, quiet: bool, finetune_tokens: int | None = None) -> None:
    """Run a setting and show what it found."""
    from pathlib import Path

    from nearlm.base import Reporter
    from nearlm.paper.report import check_figure, write_report
    from nearlm.paper.reproduction import Reproduction

    Path(out).mkdir(parents=True, exist_ok=True)
    check_figure(Path(out) / "figure.png")
    command = " ".join(["nearlm", *sys.argv[1:]])
    run = Reproduction(setting, Path(out), Reporter(quiet), command=command, finetune_tokens=finetune_tokens)
    results = run.run(parts)
    print(results.told())
    print(f"\n{write_report(results)}")
