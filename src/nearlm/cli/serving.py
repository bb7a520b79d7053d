"""Commands that keep a model loaded: an HTTP server, and a dialogue in the terminal."""

from pathlib import Path
from typing import Annotated, Any

from nearlm.base import import_extra
from nearlm.cli.console import GREEDY, Generation
from nearlm.cli.help import GENERATION, SERVER, STORE
from nearlm.cli.options import OWN_MODEL, PLAIN, Model, Place, Search, Shown, Store, flat, model_spec, option
from nearlm.serve.limits import Limits
from nearlm.store import Datastore, SearchSettings

Stores = Annotated[tuple[Place, ...], option(STORE, "Folders of stores, or cache:NAME; the first is the default.")]
LIMITS = Limits()


def serve_command(
    stores: Stores,
    /,
    *,
    host: Annotated[str, option(SERVER, "Where to listen; anything but the loopback needs a key.")] = "127.0.0.1",
    port: Annotated[int, option(SERVER, "Port to listen on, 0 for any that is free.")] = 8000,
    api_key_file: Annotated[Path | None, option(SERVER, "File with the key that clients must send.")] = None,
    limits: Annotated[Limits, flat(SERVER)] = LIMITS,
    spec: Model = OWN_MODEL,
    output: Shown = PLAIN,
) -> None:
    """Serve stores over HTTP, as OpenAI's clients expect it."""
    for module in ("fastapi", "uvicorn", "prometheus_client"):
        import_extra(module, "the server", "serve")
    from nearlm.serve.server import read_key, serve

    key = None if api_key_file is None else read_key(api_key_file)
    loading: dict[str, Any] = {
        name: getattr(spec, name)
        for name in ("model", "device", "dtype", "trust_remote_code", "revision", "adapter", "quantization")
        if getattr(spec, name) != getattr(OWN_MODEL, name)
    }
    serve(stores, host, port, key, limits, reporter=output.reporter, **loading)


def chat_command(
    store: Store,
    /,
    *,
    generation: Annotated[Generation, flat(GENERATION)] = GREEDY,
    settings: Search = SearchSettings(),
    spec: Model = OWN_MODEL,
    output: Shown = PLAIN,
) -> None:
    """Talk with the model and its memory, or have texts continued."""
    from nearlm.cli.talk import talk
    from nearlm.knnlm import KNNLM
    from nearlm.knnlm.dialogue import Dialogue

    opened = Datastore.open(store)
    talk(Dialogue(KNNLM.load(opened, model_spec(opened, spec), settings)), generation)
