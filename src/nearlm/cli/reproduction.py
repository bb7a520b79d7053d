"""Commands that measure the paper's tables and figures."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from nearlm.base import check_at_least, printable, to_json
from nearlm.cli.help import MODEL, OUTPUT, TEXT
from nearlm.cli.options import PLAIN, Output, Place, Shown, option

if TYPE_CHECKING:
    from nearlm.paper.settings import Setting

Texts = tuple[str, ...]


def demo_command(
    *,
    out: Annotated[Place, option(OUTPUT, "Where everything goes.")] = "demo",
    max_tokens: Annotated[int, option(TEXT, "How many tokens the memory holds.")] = 100_000,
    output: Shown = PLAIN,
) -> None:
    """From nothing to a fast memory: SmolLM2 and licence texts."""
    from nearlm.paper.reproduction import DEMO_PARTS
    from nearlm.paper.settings import DEMO, resize

    _reproduce(resize(DEMO, max_tokens), out, DEMO_PARTS, output)


def reproduce_command(
    *,
    setting: Annotated[
        str, option(TEXT, "Model and texts: domain, standard, comparison, comparison-standard, wikitext103, law-mt.")
    ],
    out: Annotated[Place, option(OUTPUT, "Where tables, figures and the page go.")],
    max_tokens: Annotated[int | None, option(TEXT, "Put only N tokens into the store.")] = None,
    model: Annotated[str | None, option(MODEL, "Another model than the setting's.")] = None,
    train: Annotated[Texts, option(TEXT, "Another text for the store.")] = (),
    valid: Annotated[Texts, option(TEXT, "Another text to tune on.")] = (),
    test: Annotated[Texts, option(TEXT, "Another text to test on.")] = (),
    unrelated: Annotated[Texts, option(TEXT, "Another text that has nothing to do with the others.")] = (),
    budgets: Annotated[tuple[float, ...], option(OUTPUT, "Of a comparison: minutes for each method.")] = (),
    methods: Annotated[tuple[str, ...], option(OUTPUT, "Of a comparison: only these; others stay in the table.")] = (),
    finetune_tokens: Annotated[
        int | None, option(MODEL, "Also train the model itself on N tokens of the store's text, to compare.")
    ] = None,
    output: Shown = PLAIN,
) -> None:
    """Measure every table and figure of the paper, and make a page of them."""
    from nearlm.paper.reproduction import ALL_PARTS, COMPARED_PARTS
    from nearlm.paper.settings import change, find_setting, give_budgets, resize

    check_at_least(2, finetune_tokens=finetune_tokens)
    chosen = change(find_setting(setting), model=model, train=train, valid=valid, test=test, unrelated=unrelated)
    chosen = give_budgets(resize(chosen, max_tokens), budgets, methods)
    parts = COMPARED_PARTS if chosen.budgets else ALL_PARTS
    _reproduce(chosen, out, parts, output, finetune_tokens=finetune_tokens, methods=methods)


def _reproduce(
    setting: "Setting",
    out: Place,
    parts: Sequence[str],
    output: Output,
    *,
    finetune_tokens: int | None = None,
    methods: Texts = (),
) -> None:
    """Run a setting and show what it found."""
    from nearlm.paper.report import check_figure, write_report
    from nearlm.paper.reproduction import Reproduction

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    check_figure(folder / "figure.png")
    command = " ".join(["nearlm", *sys.argv[1:]])
    wishes: Any = {"finetune_tokens": finetune_tokens, "methods": methods}
    run = Reproduction(setting, folder, output.reporter, command=command, **wishes)
    results = run.run(parts)
    page = write_report(results)
    if output.as_json:
        output.show({**to_json(results.all()), "page": str(page)})
    else:
        print(f"{printable(results.all().table())}\n\n{page}")
