"""Commands that keep a model loaded: an HTTP server, and a dialogue in the terminal."""

from pathlib import Path
from typing import Annotated, Any

from nearlm.base import import_extra
from nearlm.cli.console import GREEDY, Generation
from nearlm.cli.help import GENERATION, SERVER, STORE
from nearlm.cli.options import (
    HERE,
    OWN_MODEL,
    PLAIN,
    Model,
    More,
    Place,
    Search,
    Shown,
    Store,
    Where,
    flat,
    model_spec,
    option,
)
from nearlm.serve.limits import Limits
from nearlm.store import Datastore, SearchSettings, open_stores

Stores = Annotated[tuple[Place, ...], option(STORE, "Folders of stores, or cache:NAME; the first is the default.")]
Drafting = Annotated[
    bool, option(SERVER, "Draft tokens from the stores' texts and what was read.", negative="--no-draft")
]
LIMITS = Limits()


def serve_command(
    stores: Stores,
    /,
    *,
    host: Annotated[str, option(SERVER, "Where to listen; anything but the loopback needs a key.")] = "127.0.0.1",
    port: Annotated[int, option(SERVER, "Port to listen on, 0 for any that is free.")] = 8000,
    api_key_file: Annotated[Path | None, option(SERVER, "File with the key that clients must send.")] = None,
    draft: Drafting = True,
    limits: Annotated[Limits, flat(SERVER)] = LIMITS,
    spec: Model = OWN_MODEL,
    where: Where = HERE,
    output: Shown = PLAIN,
) -> None:
    """Serve stores over HTTP, as OpenAI's clients expect it."""
    for module in ("fastapi", "uvicorn", "prometheus_client"):
        import_extra(module, "the server", "serve")
    from nearlm.cluster.served import searching_on
    from nearlm.serve.server import read_key, serve

    key = None if api_key_file is None else read_key(api_key_file)
    loading: dict[str, Any] = {
        name: getattr(spec, name)
        for name in ("model", "device", "dtype", "trust_remote_code", "revision", "adapter", "quantization", "weights")
        if getattr(spec, name) != getattr(OWN_MODEL, name)
    }
    opened = [Datastore.open(store) for store in stores]
    with searching_on(where, output.reporter, *opened):
        serve(opened, host, port, key, limits, draft=draft, reporter=output.reporter, **loading)


def chat_command(
    store: Store,
    /,
    *,
    more: More = (),
    generation: Annotated[Generation, flat(GENERATION)] = GREEDY,
    settings: Search = SearchSettings(),
    spec: Model = OWN_MODEL,
    where: Where = HERE,
    output: Shown = PLAIN,
) -> None:
    """Talk with the model and its memory, or have texts continued."""
    from nearlm.cli.talk import talk
    from nearlm.cluster.served import searching_on
    from nearlm.knnlm import KNNLM
    from nearlm.knnlm.dialogue import Dialogue

    stores = open_stores([store, *more])
    with searching_on(where, output.reporter, *stores):
        talk(Dialogue(KNNLM.load(stores, model_spec(stores[0], spec), settings)), generation)
