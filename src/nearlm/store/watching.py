"""Whether a store has changed since it was opened, for the price of some stats."""

from nearlm.store.layout import Layout

Stamp = tuple[tuple[int, int, int] | None, ...]


def stamp_of(layout: Layout, index: str | None = None) -> Stamp:
    """Return what changes when a store is added to, forgets, is compacted, or gets another index or suffix array.

    All of these are renames, so that size, time or number of a file differ afterwards.
    """
    paths = [layout.manifest, layout.suffixes.description]
    if index is not None:
        paths += [layout.index(index).description, layout.index(index).settings]
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            seen = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((seen.st_mtime_ns, seen.st_size, seen.st_ino))
    return tuple(found)
