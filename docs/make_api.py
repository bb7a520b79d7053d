"""Write docs/api.md from the signatures and docstrings of what `nearlm` exports: `make docs`.

    python docs/make_api.py [--check]

`--check` writes nothing and fails if the page is not current.
"""

import ast
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import nearlm

PAGE = Path(__file__).with_name("api.md")
GROUPS = {
    "Make a memory": "fit build build_text_first build_index build_infinigram tune learn_all Mixture Gate optimize "
    "reduce_store prune_store",
    "Use it": "KNNLM attach Attachment evaluate push pull",
    "Edit it": "add forget compact",
    "Options": "TextSource ModelSpec BuildOptions SearchSettings FitOptions Training PruneOptions ReduceOptions",
    "Parts": "LM Datastore Retriever Memory faiss_index",
    "Results and errors": "Fit Tuning Learned Evaluation Choice Gone IndexInfo Continuation Explanation Reporter "
    "NearLMError",
}
HEAD = """# Python API

Everything here is in `nearlm` itself. A store is given as a folder, as `cache:NAME`, or as an open `Datastore`; a text
as names of files, folders and corpora, or as a `TextSource` (`TextSource.from_strings` for texts in memory). Functions
print nothing unless they are given a `Reporter()`. An error that a user can cause is a `NearLMError`.

In signatures, `AnyStore` is `str | Path | Datastore`; `AnyModel` is a name, a `ModelSpec`, an `LM`, a transformers
model, or None for the store's own; `Texts` is `str | Path | Sequence[str | Path] | TextSource`; `DEFAULT` is "default".

This page is generated from the docstrings (`make docs`); the examples are run by the tests.
"""


def main() -> None:
    """Write the page, or compare it."""
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text, "utf-8")
    elif PAGE.read_text("utf-8") != text:
        sys.exit(f"{PAGE.name} is not current; run `make docs`")


def page() -> str:
    """Return the whole page."""
    listed = [name for names in GROUPS.values() for name in names.split()]
    missing = set(nearlm.__all__) ^ set(listed)
    if missing:
        sys.exit(f"docs/make_api.py and nearlm.__all__ differ in: {', '.join(sorted(missing))}")
    parts = [HEAD]
    for group, names in GROUPS.items():
        parts.append(f"## {group}\n")
        parts += [section(name, getattr(nearlm, name)) for name in names.split()]
    return "\n".join(parts)


def section(name: str, thing: Any) -> str:
    """Describe one name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    lines = [f"### {name}\n"]
    if isinstance(tree, ast.ClassDef):
        return "\n".join([*lines, prose(tree), *fields(tree), *methods(name, tree)])
    assert isinstance(tree, ast.FunctionDef)
    return "\n".join([*lines, signature(tree, f"nearlm.{name}"), prose(tree)])


def fields(tree: ast.ClassDef) -> list[str]:
    """List a dataclass's fields, with the texts below them."""
    rows = []
    for node, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or ast.unparse(node.target).startswith("_"):
            continue
        default = f" = {ast.unparse(node.value)}" if node.value else ""
        help_text = ""
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            help_text = f": {below.value.value}"
        rows.append(f"- `{ast.unparse(node.target)}: {ast.unparse(node.annotation)}{default}`{help_text}")
    return [*rows, ""] if rows else []


def methods(name: str, tree: ast.ClassDef) -> list[str]:
    """List a class's public methods and properties."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            found.append(signature(node, f"nearlm.{name}").replace(" -> None", ""))
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        marks = [ast.unparse(mark) for mark in node.decorator_list]
        if "overload" in marks:
            continue
        if any(mark.endswith("property") for mark in marks):
            returned = f": {ast.unparse(node.returns)}" if node.returns else ""
            found.append(f"**`{node.name}{returned}`** {prose(node)}")
        else:
            found.append(f"{signature(node, f'{name}.{node.name}')}\n{prose(node)}")
    return found


def signature(tree: ast.FunctionDef, called: str) -> str:
    """Write how a function is called, in one line or with a line for each parameter."""
    tree.args.args = [each for each in tree.args.args if each.arg not in ("self", "cls")]
    parameters = re.sub(r"(: [^=,]+|\])=", r"\1 = ", ast.unparse(tree.args))
    parameters = re.sub(r": '([^']+)'", r": \1", parameters)  # types named before they exist
    returned = f" -> {ast.unparse(tree.returns)}".replace("'", "") if tree.returns else ""
    line = f"{called}({parameters}){returned}"
    if len(line) > 100:
        parts = re.split(r", (?=\*|\w+:)(?![^\[]*\])", parameters)
        line = f"{called}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returned}"
    return f"```python\n{line}\n```\n"


def prose(tree: ast.FunctionDef | ast.ClassDef) -> str:
    """Turn a docstring into Markdown: parameters as a list, examples as code."""
    text = ast.get_docstring(tree) or ""
    found = re.split(r"\n\n?(Args|Returns|Example):\n", f"{text}\n")
    out = [found[0].strip(), ""]
    for title, body in zip(found[1::2], found[2::2], strict=True):
        plain = textwrap.dedent(body).strip("\n")
        if title == "Args":
            joined = re.sub(r"\n\s+", " ", plain)
            out += [f"- `{line.partition(':')[0]}`:{line.partition(':')[2]}" for line in joined.splitlines()]
        elif title == "Returns":
            out.append(f"Returns: {' '.join(plain.split())}")
        else:
            out += ["```python", plain, "```"]
        out.append("")
    return "\n".join(out)


if __name__ == "__main__":
    main()
