"""A text that was generated with the memory, token by token: what came from the memory, and from where."""

from nearlm.base import Json
from nearlm.paper.report import markup
from nearlm.paper.report.markup import Column, TableRow


def continuation(found: Json) -> str:
    """Return the prompt and both continuations; every token leads to the contexts that the memory found for it."""
    tokens = "".join(_token(number, token) for number, token in enumerate(found["tokens"])).lstrip()
    written = tokens or markup.text(found["with"].lstrip())
    explained = "\n".join(_explained(number, token) for number, token in enumerate(found["tokens"]))
    return "\n".join(
        [
            '<div class="texts">',
            _block("The prompt", markup.text(found["prompt"]), "prompt"),
            _block("The model alone", markup.text(found["without"].lstrip())),
            _block("With the memory", written, "memory", _LEGEND if tokens else ""),
            "</div>",
            markup.details("Token by token, with the nearest contexts", f'<div class="tokens">\n{explained}\n</div>')
            if tokens
            else "",
        ]
    )


def memory_share(token: Json) -> float:
    """Return λ·p_kNN / p: how much of a token's probability came from the memory."""
    if not token["p"]:
        return 0.0
    return min(1.0, max(0.0, float(token["lam"] * token["p_knn"] / token["p"])))


_LEGEND = (
    '<p class="scale" aria-hidden="true"><span>from the model</span><span class="bar"></span>'
    "<span>from the memory</span></p>"
)


def _block(title: str, content: str, kind: str = "", after: str = "") -> str:
    opening = f'<div class="text {kind}">' if kind else '<div class="text">'
    return f'{opening}<h3>{title}</h3><p class="written">{content}</p>{after}</div>'


def _token(number: int, token: Json) -> str:
    share = memory_share(token)
    hint = (
        f"{markup.share(share)} from the memory; p {markup.chance(token['p'])}, model {markup.chance(token['p_lm'])}, "
        f"memory {markup.chance(token['p_knn'])}, λ {token['lam']:.2f}"
    )
    bare = token["token"].lstrip(" ")
    before, shown = (" " * (len(token["token"]) - len(bare)), bare) if bare else ("", token["token"])
    shown = markup.text(shown).replace("\n", "⏎\n")
    return f'{before}<a href="#token-{number}" style="--share:{share:.2f}" title="{markup.text(hint)}">{shown}</a>'


def _explained(number: int, token: Json) -> str:
    share = memory_share(token)
    numbers = (
        f"probability {markup.chance(token['p'])} = mix of the model’s {markup.chance(token['p_lm'])} and the memory’s "
        f"{markup.chance(token['p_knn'])} with λ = {token['lam']:.2f}"
    )
    rows = [
        TableRow(
            one["token"].replace("\n", "⏎"), "", [_context(one["text"]), one["source"], markup.plain(one["distance"])]
        )
        for one in token["nearest"]
    ]
    columns = [Column("after the context"), Column("found in"), Column("distance")]
    nearest = (
        markup.table("Nearest contexts", "Next token", columns, rows) if rows else "<p>The memory was not asked.</p>"
    )
    summary = (
        f'<span class="which" style="--share:{share:.2f}">{markup.visible(token["token"])}</span> '
        f"<span>{markup.share(share)} from the memory</span>"
    )
    return markup.details(summary, f'<div id="token-{number}"><p>{markup.text(numbers)}</p>{nearest}</div>')


def _context(text: str) -> str:
    return "… " + " ".join(text.split())
