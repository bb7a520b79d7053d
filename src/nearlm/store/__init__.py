"""The datastore on disk: its layout and manifest, building, appending, deriving, opening, verifying."""

from nearlm.store.datastore import ASSIGN, DERIVE_JOB, MANIFEST, TRANSFORM, Context, Datastore, describe, shard_files
from nearlm.store.derivation import BLOCK, RECORD_FILES, Derivation, Made, derive, read_keys, result_of
from nearlm.store.lineage import open_parent, parent_records
from nearlm.store.plan import BuildOptions, difference
from nearlm.store.writing import refuse_foreign
