"""Commands that pass stores on and get them."""

from typing import Annotated

from nearlm.cli.help import STORE
from nearlm.cli.options import PLAIN, Place, Shown, Store, option


def push_command(
    store: Store,
    to: Annotated[str, option(STORE, "user/name on the Hugging Face Hub, or a folder: ./name, /shared/name, file://…")],
    /,
    *,
    slim: Annotated[bool, option(STORE, "Leave out the keys, which only new indexes and stores need.")] = False,
    private: Annotated[bool, option(STORE, "Make a new repository private.")] = False,
    license: Annotated[str | None, option(STORE, "Licence of the texts, as the Hub writes it.")] = None,
    output: Shown = PLAIN,
) -> None:
    """Pass a store on, to the Hub or to a folder."""
    from nearlm.store.sharing import push

    place = push(store, to, slim=slim, private=private, license=license, reporter=output.reporter)
    if output.as_json:
        output.show({"store": str(store), "pushed": place})
    else:
        print(f"{store} is at {place}")


def pull_command(
    source: Annotated[str, option(STORE, "user/name on the Hugging Face Hub, or a folder that a store was pushed to.")],
    /,
    *,
    out: Annotated[Place | None, option(STORE, "Folder for the store. [default: the cache, as hf:user/name]")] = None,
    revision: Annotated[str | None, option(STORE, "Branch, tag or commit of the repository.")] = None,
    output: Shown = PLAIN,
) -> None:
    """Get a store that was pushed, and check every byte of it."""
    from nearlm.store.sharing import pull

    store = pull(source, out, revision=revision, reporter=output.reporter)
    if output.as_json:
        output.show(store.summary())
    else:
        print(f"{store.path}: {store.contents}")
