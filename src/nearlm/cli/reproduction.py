"""Commands that measure the paper's tables and figures."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from nearlm.base import Reporter
from nearlm.cli.options import Quiet

if TYPE_CHECKING:
    from nearlm.paper.settings import Setting

Texts = tuple[str, ...]


def demo_command(
    *,
    out: Annotated[str, Parameter(help="Where everything goes.")] = "demo",
    max_tokens: Annotated[int, Parameter(help="How many tokens the memory holds.")] = 100_000,
    quiet: Quiet = False,
) -> None:
    """From nothing to a fast memory: SmolLM2 and licence texts."""
    from nearlm.paper.reproduction import DEMO_PARTS
    from nearlm.paper.settings import DEMO, resize

    _reproduce(resize(DEMO, max_tokens), out, DEMO_PARTS, quiet)


def reproduce_command(
    *,
    setting: Annotated[str, Parameter(help="domain, standard, wikitext103 or law-mt.")],
    out: Annotated[str, Parameter(help="Where tables, figures and the page go.")],
    max_tokens: Annotated[int | None, Parameter(help="Put only N tokens into the store.")] = None,
    model: Annotated[str | None, Parameter(help="Another model than the setting's.")] = None,
    train: Annotated[Texts, Parameter(help="Another text for the store.")] = (),
    valid: Annotated[Texts, Parameter(help="Another text to tune on.")] = (),
    test: Annotated[Texts, Parameter(help="Another text to test on.")] = (),
    finetune_tokens: Annotated[
        int | None, Parameter(help="Also train the model itself on N tokens of the store's text.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Measure every table and figure of the paper, and make a page of them."""
    from nearlm.paper.reproduction import ALL_PARTS
    from nearlm.paper.settings import change, find_setting, resize

    chosen = change(find_setting(setting), model=model, train=train, valid=valid, test=test)
    _reproduce(resize(chosen, max_tokens), out, ALL_PARTS, quiet, finetune_tokens)


def _reproduce(
    setting: "Setting", out: str, parts: Sequence[str], quiet: bool, finetune_tokens: int | None = None
) -> None:
    """Run a setting and show what it found."""
    from nearlm.paper.report import check_figure, write_report
    from nearlm.paper.reproduction import Reproduction

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    check_figure(folder / "figure.png")
    command = " ".join(["nearlm", *sys.argv[1:]])
    run = Reproduction(setting, folder, Reporter(quiet), command=command, finetune_tokens=finetune_tokens)
    results = run.run(parts)
    print(results.all().table())
    print(f"\n{write_report(results)}")
