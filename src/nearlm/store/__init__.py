"""The datastore on disk: its layout and manifest, building, appending, deriving, opening, verifying.

`store.builder` is imported by its name, since it needs torch and the rest does not.
"""

from nearlm.store.contents import check_ids, check_places, check_tokens
from nearlm.store.datastore import AnyStore, Datastore
from nearlm.store.derivation import BLOCK, Derivation, Made, derive, open_parent, parent_records, result_of
from nearlm.store.faiss_files import read_faiss_index, read_linear, write_faiss_index, write_linear
from nearlm.store.forgetting import Choice, Gone, still_held
from nearlm.store.group import AnyStores, open_stores, store_names
from nearlm.store.key_codes import CodedKeys, KeyCodec
from nearlm.store.layout import (
    FitFiles,
    IndexData,
    IndexFiles,
    Layout,
    NetworkFiles,
    NGramFiles,
    SuffixFiles,
    is_key_file,
    is_record_file,
)
from nearlm.store.manifest import Manifest, Step, StoreState
from nearlm.store.plan import SHARD_RECORDS, BuildOptions, difference
from nearlm.store.settings import DEFAULT, NONE, SearchSettings, Tuned, read_tuned, write_defaults, write_tuned
from nearlm.store.tracing import Context
from nearlm.store.writing import begin_or_resume, refuse_foreign
