"""Every file name of a store's folder."""

import re
from pathlib import Path, PureWindowsPath

import numpy as np

from nearlm.base import ArrayFile, Columns, Ids, Int32s, Job, OptionError, StoreError
from nearlm.text import Segment

KEY_DTYPES = ("float16", "float32", "int8")


class Layout:
    """The places of a store's files; which of them there are, the manifest says."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.manifest = folder / "manifest.json"
        self.defaults = folder / "defaults.json"  # what is used when nothing is named
        self.probe = folder / "probe.npy"  # the model's keys of a fixed sequence
        self.tokenizer = folder / "tokenizer"
        self.transform = folder / "transform.faiss"  # of a reduced store: from the LM's keys to the stored ones
        self.assign = folder / "assign.npy"  # of a pruned store: the record that stands for each position
        self.ngrams = NGramFiles(folder / "ngrams")
        self.suffixes = SuffixFiles(folder / "suffixes")
        self.shared = folder / "shared.json"  # of a store that was pushed or pulled: what was passed on
        self.optimized = folder / "optimize.json"  # how the store was chosen
        self.fit = FitFiles(folder / "fit")
        self.build_job = Job(folder, "build")  # of a build or an append
        self.text_job = Job(folder, "text")  # of a build whose text can be used before its keys are there
        self.derive_job = Job(folder, "derive")  # that makes a store from another
        self.compact_job = Job(folder, "compact")  # that takes forgotten documents off the disk

    @property
    def is_store(self) -> bool:
        """Whether the folder is a finished store."""
        return self.manifest.exists()

    def segment(self, number: int) -> Segment:
        """Return the files of one build's or append's token stream."""
        return Segment(self.folder, number)

    def shard(self, number: int, records: int, dim: int, key_dtype: str, weighted: bool = False) -> Columns:
        """Return the arrays of one shard: keys, values, origin, and weights if records have them."""

        def file(name: str, dtype: str, *shape: int) -> ArrayFile:
            return ArrayFile(self.folder / f"{name}-{number:05d}.npy", np.dtype(dtype), (records, *shape))

        columns = {
            "keys": file("keys", key_dtype, dim),
            "values": file("values", "int32"),
            "origin": file("origin", "int64"),
        }
        return columns | ({"weights": file("weights", "int32")} if weighted else {})

    def forgotten(self, name: str, documents: int) -> ArrayFile:
        """Return the file of forgotten documents' numbers, named by what it holds; a name that none has is refused."""
        if not re.fullmatch(r"forgotten-[0-9a-f]{8}\.npy", name):
            raise StoreError(f"{self.manifest} names a file {name!r}, expected forgotten-….npy; restore it")
        return ArrayFile(self.folder / name, np.dtype("int64"), (documents,))

    def scales(self, dim: int) -> ArrayFile:
        """Return the file of the middle and the step of every axis, which 8-bit keys have."""
        return ArrayFile(self.folder / "scales.npy", np.dtype("float32"), (2, dim))

    def index(self, name: str) -> "IndexFiles":
        """Return the files of an index."""
        return IndexFiles(self.folder / "index" / _plain("index", name))

    def gate(self, name: str) -> "NetworkFiles":
        """Return the files of a gate."""
        return NetworkFiles(self.folder / "gate" / _plain("gate", name), "gate")

    def mixture(self, name: str) -> "NetworkFiles":
        """Return the files of a mixture."""
        return NetworkFiles(self.folder / "mixture" / _plain("mixture", name), "mixture")

    def names(self, kind: str) -> list[str]:
        """Return the names of the finished ones of a kind: `index`, `gate` or `mixture`."""
        return sorted(path.parent.name for path in self.folder.glob(f"{kind}/*/{kind}.json"))

    def check_described(self) -> None:
        """Refuse what is finished, by its last file, but whose description, which is written with it, is gone."""
        described = {
            "index/*/settings.json": "index.json",
            "index/*/data-*": "index.json",
            "gate/*/gate.safetensors": "gate.json",
            "mixture/*/mixture.safetensors": "mixture.json",
            "suffixes/depths.npy": "suffixes.json",
            "suffixes/data-*/depths.npy": "../suffixes.json",
            "ngrams/*.npy": "ngrams.json",
            "ngrams/data-*": "ngrams.json",
        }
        for pattern, description in described.items():
            for path in sorted(self.folder.glob(pattern)):
                folder = path.parents[description.count("../")]
                name = description.removeprefix("../")
                unfinished = any(folder.glob("**/*.job/plan.json")) or (folder / "next.json").exists()
                if not (unfinished or (folder / name).exists()):
                    raise StoreError(f"{folder / name} is missing; restore it, or remove {folder}")

    def of_a_build(self) -> list[Path]:
        """List all that a build or append may have written, finished or not."""
        columns = ("keys-*.npy", "values-*.npy", "origin-*.npy", "tokens-*.npy", "docs-*")
        patterns = (*columns, "scales.npy", "forgotten-*.npy", "*.part")
        found = [path for pattern in patterns for path in sorted(self.folder.glob(pattern))]
        return [*found, *(path for path in (self.probe, self.tokenizer) if path.exists())]


def is_record_file(name: str) -> bool:
    """Tell whether a file holds something of each record: its key, value, origin or weight."""
    return name.startswith(("keys-", "values-", "origin-", "weights-"))


def is_key_file(name: str) -> bool:
    """Tell whether a file holds keys."""
    return name.startswith("keys-")


class IndexFiles:
    """The files of an index; its data lie in a folder that its description names."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.description = folder / "index.json"
        self.prepared = folder / "next.json"  # what is described for a state of the store that is to come
        self.settings = folder / "settings.json"  # what was tuned
        self.neighbors = folder / "neighbors.npy"  # of every record, kept by merging
        self.neighbors_description = folder / "neighbors.json"
        self.ranks = folder / "ranks.npy"  # scores of every record, kept by ranking
        self.ranks_description = folder / "ranks.json"

    def data(self, name: str) -> "IndexData":
        """Return the files of the index itself; a name that no index has is refused."""
        if not re.fullmatch(r"data-[0-9]+(-new)?", name):
            raise StoreError(f"{self.folder} names a folder {name!r}, expected data-…; remove it and index again")
        return IndexData(self.folder / name)

    def all_data(self) -> list[Path]:
        """List the folders of data, finished or not."""
        return sorted(self.folder.glob("data-*"))


class IndexData:
    """The data of an index: FAISS's own files, lists as arrays, and the records' values and weights."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.faiss = folder / "index.faiss"
        self.transform = folder / "transform.faiss"
        self.groups = folder / "groups.npy"
        self.offsets = folder / "offsets.npy"
        self.ids = folder / "ids.npy"
        self.codes = folder / "codes.npy"
        self.bias = folder / "bias.npy"

    def names(self) -> set[str]:
        """Return the names that its files can have, as seen from the index's folder."""
        files = (self.faiss, self.transform, self.groups, self.offsets, self.ids, self.codes, self.bias)
        columns = (self.column(name, 0).path for name in ("values", "weights"))
        return {f"{self.folder.name}/{path.name}" for path in (*files, *columns)}

    def column(self, name: str, records: int, dtype: str = "int32") -> ArrayFile:
        """Return the file of the records' `values` or `weights`."""
        return ArrayFile(self.folder / f"{name}.npy", np.dtype(dtype), (records,))

    def write_column(self, name: str, column: Int32s) -> None:
        """Keep the records' `values` or `weights`, in two bytes each if all fit."""
        narrow = len(column) and column.max() <= np.iinfo(np.uint16).max
        self.column(name, len(column), "uint16" if narrow else "int32").write(column)

    def open_column(self, name: str, records: int) -> Ids:
        """Map the records' `values` or `weights`."""
        narrow = self.column(name, records, "uint16")
        file = narrow if narrow.sound else self.column(name, records)
        file.check()
        return file.open()


class NetworkFiles:
    """The files of a trained network: a gate or a mixture."""

    def __init__(self, folder: Path, kind: str):
        self.folder = folder
        self.kind = kind
        self.description = folder / f"{kind}.json"
        self.weights = folder / f"{kind}.safetensors"


class FitFiles:
    """What `fit` knows of a store that it made: which documents are held out, and how well the memory does."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.description = folder / "fit.json"

    def documents(self, name: str, rows: int) -> ArrayFile:
        """Return the table of documents, whose name changes with what it holds; a name that none has is refused."""
        if not re.fullmatch(r"documents-[0-9a-f]{8}\.npy", name):
            raise StoreError(
                f"{self.description} names a file {name!r}, expected documents-….npy; remove {self.folder}"
            )
        return ArrayFile(self.folder / name, np.dtype("int64"), (rows, 4))

    def all_documents(self) -> list[Path]:
        """List the tables of documents, old ones too."""
        return sorted(self.folder.glob("documents-*.npy"))


class NGramFiles:
    """The files of the n-gram tables."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.description = folder / "ngrams.json"
        self.prepared = folder / "next.json"  # what is described for a state of the store that is to come

    def table(self, name: str, dtype: str, length: int, data: str = "") -> ArrayFile:
        """Return the file of a table; tables that were prepared lie in a folder of their own."""
        if data and not re.fullmatch(r"data-[0-9a-f]+", data):
            raise StoreError(f"{self.folder} names a folder {data!r}, expected data-…; remove it and make it again")
        return ArrayFile(self.folder / data / f"{name}.npy", np.dtype(dtype), (length,))

    def others(self, data: str) -> list[Path]:
        """List all tables but those of one folder, or in no folder if that is empty."""
        loose = () if data == "" else ("*.npy",)
        found = [path for pattern in ("data-*", *loose) for path in sorted(self.folder.glob(pattern))]
        return [path for path in found if path.name != data]


class SuffixFiles:
    """The files of the suffix array; its arrays lie in a folder that its description names."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.description = folder / "suffixes.json"
        self.prepared = folder / "next.json"  # what is described for a state of the store that is to come

    def arrays(self, data: str, tokens: int, rows: int, vocabulary: int, dtype: str) -> dict[str, ArrayFile]:
        """Return the files of the arrays by their names; `tokens` is there only if the text has several segments.

        Those of older versions lie in no folder of their own (`data` is empty).
        """
        if data and not re.fullmatch(r"data-[0-9]+", data):
            raise StoreError(f"{self.folder} names a folder {data!r}, expected data-…; remove it and make it again")
        shapes = {
            "order": (dtype, rows),
            "following": ("int32", rows),
            "starts": ("int64", vocabulary + 1),
            "depths": ("uint8", rows),
            "tokens": ("int32", tokens),
        }
        return {
            name: ArrayFile(self.folder / data / f"{name}.npy", np.dtype(kind), (length,))
            for name, (kind, length) in shapes.items()
        }

    def name_of(self, array: ArrayFile) -> str:
        """Return how the description names a file."""
        return array.path.relative_to(self.folder).as_posix()

    def others(self, data: str | None) -> list[Path]:
        """List all arrays, finished or not, but those of one folder, or in no folder if that is empty."""
        loose = () if data == "" else ("*.npy",)
        found = [path for pattern in ("data-*", "*.part", *loose) for path in sorted(self.folder.glob(pattern))]
        return [path for path in found if path.name != data]


def is_plain(name: str) -> bool:
    """Tell whether a name is that of something right in a folder, on any system."""
    return name == PureWindowsPath(name).name == Path(name).name and bool(name) and not name.startswith(".")


def _plain(option: str, name: str) -> str:
    if not is_plain(name):
        raise OptionError(f"`{option}` is {name!r}, expected a plain name")
    return name
