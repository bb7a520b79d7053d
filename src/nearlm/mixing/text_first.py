"""Builds whose text can be used while their keys are computed: first a store of the text alone, then its keys.

The store of the text is what `keys="none"` makes, with its suffix array; adding keys leaves it usable until the rename
that makes it one with keys. A note in the folder, `text.job`, tells it from one that was wanted without keys.
"""

from dataclasses import replace
from pathlib import Path

from nearlm.base import QUIET, Reporter, StoreError, check_at_least, files, store_folder
from nearlm.mixing.infinigram_building import build_infinigram
from nearlm.model import FFN, ModelSpec
from nearlm.model.lm import LM
from nearlm.store import BuildOptions, Datastore, Layout
from nearlm.store.builder import build
from nearlm.store.plan import NO_KEYS
from nearlm.text import Texts, TextSource


def build_text_first(
    model: str | ModelSpec | LM | None,
    text: Texts,
    out: str | Path,
    options: BuildOptions = BuildOptions(),
    *,
    restart: bool = False,
    threads: int | None = None,
    reporter: Reporter = QUIET,
) -> Datastore:
    """Build as `build` does, so that the text can be used as an instant memory while the keys are computed.

    The records are the same, byte for byte; beside them there is the suffix array of the text.

    Args:
        model: As for `build`.
        text: Names of files, folders, globs and corpora, or a `TextSource`.
        out: Folder of the store to make, or `cache:NAME`.
        options: How the text becomes records.
        restart: Throw an unfinished build away first. Without it, the same call resumes where it stopped.
        threads: As for `build`.
        reporter: Whom to tell of the progress.

    Example:
        >>> store = nearlm.build_text_first("smollm2-135m", "docs/", "growing")
        >>> len(store) == len(store.values)
        True
    """
    check_at_least(1, threads=threads)
    layout = Layout(store_folder(out))
    source = TextSource.of(text)
    restart = restart and not _throw_away(layout)
    if options.wants_keys and _begins_with_text(layout):
        model = LM.load(model, key_tap=options.key_tap or FFN) if isinstance(model, str | ModelSpec) else model
        there = layout.is_store
        _build_text(model, source, layout, options, restart and not there, reporter)
        restart = restart and there
    store = build(model, source, layout.folder, options, restart=restart, threads=threads, reporter=reporter)
    layout.text_job.close()
    return store


def _begins_with_text(layout: Layout) -> bool:
    """Tell whether a build is to begin, or was begun, with a store of the text."""
    if layout.is_store:
        return not len(Datastore.open(layout.folder))
    job = layout.build_job
    if not job.started:
        return True
    options = job.plan().get("options")
    return isinstance(options, dict) and options.get("keys") == NO_KEYS


def _build_text(
    lm: LM | None, source: TextSource, layout: Layout, options: BuildOptions, restart: bool, reporter: Reporter
) -> None:
    """Make the store of the text, or find that it is there."""
    text_only = replace(options, keys=NO_KEYS)
    there = layout.is_store
    try:
        store = build(lm, source, layout.folder, text_only, restart=restart, reporter=reporter)
    except StoreError as error:
        if not (there and layout.text_job.started):
            raise
        raise StoreError(f"{error}, or throw the unfinished build away with `restart=True`") from error
    if not there:
        layout.text_job.begin({})
    build_infinigram(store, reporter)
    reporter.say(f"the text of {layout.folder} can be used already, while its keys are computed")


def _throw_away(layout: Layout) -> bool:
    """Forget the text of an unfinished build, if that had begun to be used; return whether there was any."""
    if not (layout.text_job.started and layout.is_store):
        return False
    with files.lock(layout.folder):
        if Datastore.open(layout.folder).manifest.records:
            return False
        layout.build_job.folder.mkdir(exist_ok=True)  # which says, after a kill, whose the rest is
        layout.build_job.forget_plan()
        files.remove(layout.manifest)
        layout.build_job.discard([layout.suffixes.folder, layout.text_job.folder, *layout.of_a_build()])
    return True
