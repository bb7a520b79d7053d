"""Commands that train a gate, take it apart, and sweep over stores; they need torch from the start."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from nearlm.base import OptionError, check_at_least
from nearlm.cli.help import OUTPUT, SEARCH, SWEEP, TEXT, TRAINING
from nearlm.cli.options import (
    HERE,
    OWN_MODEL,
    PLAIN,
    Figure,
    IndexName,
    Model,
    More,
    Place,
    Shown,
    Source,
    Store,
    Stride,
    Where,
    flat,
    load_model,
    option,
)
from nearlm.cluster.served import searching_on
from nearlm.mixing import ALL_SOURCES, Training, learn_all
from nearlm.paper.ablation import ablate
from nearlm.paper.report import ablation_figure, check_figure, sweep_figure
from nearlm.paper.sweep import SweepOptions, sweep
from nearlm.store import DEFAULT, Datastore, open_stores


def gate_command(
    store: Store,
    /,
    source: Source,
    *,
    more: More = (),
    gate: Annotated[str, option(TRAINING, "Name of the mixture and gate to make.")] = DEFAULT,
    sources: Annotated[
        str, option(TRAINING, "What to mix with the LM: some of knn,ngram,text, or none for the paper's gate alone.")
    ] = ALL_SOURCES,
    index: IndexName = DEFAULT,
    training: Annotated[Training, flat(TRAINING)] = Training(),
    samples: Annotated[
        int | None,
        option(
            TRAINING,
            "About how many tokens the model writes by itself, to learn from them when not to trust the memory. "
            "[default: 0.4 of the text's, at most 20,000]",
        ),
    ] = None,
    stride: Stride = None,
    spec: Model = OWN_MODEL,
    where: Where = HERE,
    output: Shown = PLAIN,
) -> None:
    """Learn from a validation text how much to trust the memory for each token, and when to skip retrieval."""
    stores = open_stores([store, *more])
    lm = load_model(stores[0], spec)
    how: dict[str, Any] = {"name": gate, "index": index, "sources": sources, "stride": stride, "samples": samples}
    with searching_on(where, output.reporter, *stores):
        made = learn_all(stores, source, lm, training, reporter=output.reporter, **how)
    infos = {"mixture": made.mixture and made.mixture.info, "gate": made.gate and made.gate.info}
    output.tell(infos if output.as_json else made)


def ablate_command(
    store: Store,
    /,
    source: Source,
    *,
    valid: Annotated[
        tuple[Place, ...], option(TEXT, "The gate's validation text, to train the variants of the paper too.")
    ] = (),
    valid_tokens: Annotated[int | None, option(TEXT, "Use only the first N tokens of the validation text.")] = None,
    gate: Annotated[str, option(SEARCH, "The gate to take apart.")] = DEFAULT,
    figure: Figure = None,
    spec: Model = OWN_MODEL,
    output: Shown = PLAIN,
) -> None:
    """Take a gate apart on a test text: masks, weights, features, objectives."""
    if figure:
        check_figure(Path(figure))
    if valid_tokens is not None and not valid:
        raise OptionError("--valid-tokens cuts the validation text; name it with --valid")
    check_at_least(2, valid_tokens=valid_tokens)
    opened = Datastore.open(store)
    lm = load_model(opened, spec)
    validation = dataclasses.replace(source, text=valid, max_tokens=valid_tokens) if valid else None
    found = ablate(lm, opened, source, gate=gate, valid=validation, reporter=output.reporter)
    output.tell(found)
    if figure:
        ablation_figure(found, Path(figure))


def sweep_command(
    store: Store,
    values: Annotated[list[float], option(SWEEP, "The values to try.")],
    /,
    *,
    options: Annotated[SweepOptions, flat(SWEEP)],
    source: Source,
    out: Annotated[Place | None, option(OUTPUT, "Where it works. [default: the store's name with -sweep]")] = None,
    figure: Figure = None,
    spec: Model = OWN_MODEL,
    output: Shown = PLAIN,
) -> None:
    """Vary one thing of a store and measure what it costs."""
    if figure:
        check_figure(Path(figure))
    opened = Datastore.open(store)
    lm = load_model(opened, spec)
    folder = Path(out) if out else opened.path.with_name(f"{opened.path.name}-sweep")
    found = sweep(lm, opened, values, source, options, folder, reporter=output.reporter)
    output.tell(found)
    if figure:
        sweep_figure(found, Path(figure))
